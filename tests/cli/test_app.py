"""The command line: what it writes, what it refuses before the draw, and what it never says."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.image import imread

import pymc_dp as pdp
from pymc_dp import containers, datasets
from pymc_dp._checks import round_up
from pymc_dp.cli import app, files
from pymc_dp.cli import input as cli_input
from pymc_dp.cli import output as cli_output
from pymc_dp.cli.app import main
from pymc_dp.record.claims import read_record
from pymc_dp.release.release import PrivateRelease

DECLARED = {
    "weights": "design weights",
    "sampling_variance": "weights and a national rate",
    "sigma_u": "an earlier report",
    "covariates": "census",
    "universe": "the sample is public",
}
DECLARE = ["--declare", *(f"{key}={source}" for key, source in DECLARED.items())]
FORMAL = ["--rate", "0.15", *DECLARE]
COLUMNS = ["--outcome", "smoker", "--weight", "weight", "--area", "area"]
MODEL = ["--sigma-u", "0.04"]
KING = ["--outcome", "smoker", "--weight", "w", "--area", "hra", *MODEL, "--missing", "drop"]


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("survey") / "records.csv"
    datasets.simulate_state_survey(areas=6, respondents=600).to_csv(path, index=False)
    return path


@pytest.fixture
def command(records, tmp_path):
    """Arguments of a release that works."""
    return ["release", records, *COLUMNS, *MODEL, *FORMAL, "--out", tmp_path / "release.nc"]


@pytest.fixture
def run(capsys):
    def run(*arguments):
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:  # of arguments that do not parse
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


def quietly(*arguments) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        return main([str(a) for a in arguments]), out.getvalue()


def group_of(path) -> xr.Dataset:
    return containers.read_group(pdp.read_public(path), "private_release")


def errors(err: str) -> list[str]:
    """Lines of standard error that are no progress."""
    return [line for line in err.splitlines() if line.startswith("pymc-dp: error: ")]


def assert_one_error(result, code, *words):
    found, out, err = result
    [line] = errors(err)
    assert found == code and all(word in line for word in words), line
    assert "Traceback" not in out + err
    return line


def assert_says_no_estimate(text: str, estimates) -> None:
    """No number of three or more decimals is an estimate to as many."""
    numbers = re.findall(r"\d+\.(\d{3,})", text)
    assert numbers
    for found in re.findall(r"\d+\.\d{3,}", text):
        digits = len(found.partition(".")[2])
        assert found not in {f"{value:.{digits}f}" for value in np.ravel(estimates)}


def assert_holds_no_estimate(folder: Path, estimates) -> None:
    """Neither the bytes nor the digits of an estimate stand in a file."""
    values = np.ravel(np.asarray(estimates, dtype="<f8"))
    for path in (p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        for value in values:
            assert value.tobytes() not in content
            assert f"{value:.9f}".encode() not in content


# The demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "out"
    code, out = quietly("demo", "--out", folder)
    assert code == 0
    return folder, out


@pytest.fixture(scope="module")
def demo_direct():
    return pdp.hajek(
        datasets.simulate_state_survey(),
        outcome="smoker",
        weight="weight",
        area="area",
        unit="household",
    )


def test_demo_writes_a_formal_release_a_table_and_three_pictures(demo):
    folder, out = demo
    assert {p.name for p in folder.iterdir()} == {
        "release.nc",
        "release.csv",
        *cli_input.PICTURES,
    }
    record = read_record(group_of(folder / "release.nc").attrs)
    assert record["claim"] == "formal" and record["unit"] == "household"
    assert record["bounds"] == [0.0, 1.0] and not record["left_out"]
    assert str(app.RATE) in record["assumptions"]["sampling_variance"]
    assert str(app.SIGMA_U) in record["assumptions"]["sigma_u"]
    assert all(str(folder / name) in out for name in ("release.nc", "release.csv", "rdp.png"))


def test_demo_pictures_are_pictures_with_something_on_them(demo):
    folder, _ = demo
    for name in cli_input.PICTURES:
        pixels = imread(folder / name)[..., :3]
        height, width, _ = pixels.shape
        assert height > 600 and width > 900
        ink = (pixels < 0.9).any(axis=2).mean()
        assert 0.01 < ink < 0.5, name


def test_demo_says_claim_unit_rho_and_epsilon_as_the_file_has_them(demo):
    folder, out = demo
    group = group_of(folder / "release.nc")
    rho, epsilon = group["rho"].item(), group["epsilon"].sel(delta=1e-6).item()
    before, after = out.split("Released")
    for part in (before, after):
        assert f"{round_up(rho)}" in part and round_up(epsilon) in part
        assert "formal" in part and "one household" in part and "delta 1e-06" in part
    assert "before any draw" in before


def test_demo_table_is_the_draw_of_the_file_with_its_interval(demo):
    folder, _ = demo
    table, group = pd.read_csv(folder / "release.csv"), group_of(folder / "release.nc")
    assert list(table) == ["area", "released", "smoothed", "lower", "upper", "claim"]
    assert list(table["area"]) == list(group["area"].values) and len(table) == 52
    assert set(table["claim"]) == {"formal"}
    np.testing.assert_array_equal(table["released"], group["theta"].values[0, 0])
    np.testing.assert_array_equal(table["smoothed"], group["theta_smoothed"].values[0, 0])
    # Half a unit of the last published digit; the half-width of a normal 90 % interval.
    last = 0.5001 * 10.0 ** -read_record(group.attrs)["publishing_decimals"]
    half = 1.6448536269514722 * group["theta_smoothed_sd"].values
    assert np.abs(table["upper"] - table["smoothed"] - half).max() < last
    assert np.abs(table["smoothed"] - table["lower"] - half).max() < last


def test_demo_price_is_that_of_the_same_release_made_in_python(demo):
    folder, _ = demo
    direct = pdp.hajek(
        datasets.simulate_state_survey(),
        outcome="smoker",
        weight="weight",
        area="area",
        unit="household",
        variance="kish",
        rate=app.RATE,
        design_factor=app.DESIGN_FACTOR,
    )
    model = pdp.fay_herriot(
        direct, "~ college + unemployment", datasets.state_covariates(), sigma_u=app.SIGMA_U
    )
    want = pdp.PrivateRelease(model, direct["sensitivity"]).guarantee
    got = group_of(folder / "release.nc")
    np.testing.assert_allclose(got["rho_respondent"], want["rho_respondent"], rtol=1e-12)


def test_demo_neither_prints_nor_writes_a_direct_estimate(demo, demo_direct):
    folder, out = demo
    assert_says_no_estimate(out, demo_direct["estimate"])
    assert_holds_no_estimate(folder, demo_direct["estimate"])


def test_demo_into_a_used_folder_is_refused_and_leaves_it_alone(demo, run):
    folder, _ = demo
    before = {p: p.read_bytes() for p in folder.iterdir()}
    assert_one_error(run("demo", "--out", folder), 2, "release.nc exists")
    assert {p: p.read_bytes() for p in folder.iterdir()} == before


# A release from a real file


def king_county(shared) -> Path:
    return shared / "data" / "brfss_king_county_2009_2013.csv.gz"


@pytest.fixture(scope="module")
def king_direct(shared):
    frame = pd.read_csv(king_county(shared)).dropna(subset=["smoker", "hra"])
    options = {"outcome": "smoker", "weight": "w", "area": "hra"}
    return {
        "linearized": pdp.hajek(frame, **options),
        "kish": pdp.hajek(frame, **options, variance="kish", rate=0.15),
    }


def test_king_county_formal_release_charges_the_ledger_what_python_prices(
    shared, king_direct, run, tmp_path
):
    direct, out = king_direct["kish"], tmp_path / "out"
    out.mkdir()
    ledger = pdp.PrivacyLedger(tmp_path / "programme.ledger", 1.0, create=True)
    arguments = ["release", king_county(shared), *KING, *FORMAL, "--ledger", ledger.path]
    files = ["--out", out / "a.nc", "--table", out / "a.csv", "--plots", out / "pictures"]
    code, said, err = run(*arguments, *files)
    assert code == 0 and not errors(err)

    model = pdp.fay_herriot(direct, sigma_u=0.04)
    want = pdp.PrivateRelease(model, direct["sensitivity"]).guarantee
    group = group_of(out / "a.nc")
    assert group["rho"].item() == pytest.approx(want["rho"].item(), rel=1e-12)
    assert ledger.spent == group["rho"].item()
    assert list(group["area"].values) == list(direct["area"].values)
    assert read_record(group.attrs)["assumptions"] == DECLARED
    assert {p.name for p in (out / "pictures").iterdir()} == set(cli_input.PICTURES)
    assert "108 without an area" in said and "139 without an outcome" in said
    assert "spent" in said and str(ledger.path) in said
    for kind in king_direct.values():
        assert_says_no_estimate(said + err, kind["estimate"])
        assert_holds_no_estimate(out, kind["estimate"])

    # The budget of 1 does not cover the same price again.
    second = run(*arguments, "--out", out / "b.nc")
    assert_one_error(second, 3, "the budget does not cover")
    assert not (out / "b.nc").exists() and len(ledger.to_dataframe()) == 1


def test_king_county_conditional_release_is_refused_without_the_flag_and_before_the_charge(
    shared, run, tmp_path
):
    ledger = pdp.PrivacyLedger(tmp_path / "programme.ledger", 100.0, conditional=True, create=True)
    target = tmp_path / "a.nc"
    arguments = ["release", king_county(shared), *KING, "--out", target, "--ledger", ledger.path]
    assert_one_error(
        run(*arguments), 2, "conditional", "sigma_u or sampling_variance", "--conditional", "--rate"
    )
    assert ledger.spent == 0 and not target.exists()

    code, said, _ = run(*arguments, "--conditional", "--table", tmp_path / "a.csv")
    assert code == 0 and ledger.spent > 0
    assert said.count("conditional (treating the variance components as fixed)") >= 1
    table, group = pd.read_csv(tmp_path / "a.csv"), group_of(target)
    # Nothing is declared, so nothing but the draw and the joint figure may leave.
    assert list(table) == ["area", "released", "claim"] and "theta_smoothed" not in group
    assert table["claim"].str.startswith("conditional").all()
    assert "nobody declares" in said
    assert list(pdp.PrivacyLedger(ledger.path).to_dataframe()["claim"]) == ["conditional"]


def test_one_missing_source_makes_the_claim_conditional(command, run):
    command = [a for a in command if not str(a).startswith("sigma_u=")]
    assert_one_error(run(*command), 2, "because nobody declares sigma_u public")


def test_covariates_without_a_source_make_the_claim_conditional(pumas, run, tmp_path):
    command = [a for a in pumas if not str(a).startswith("covariates=")]
    command += ["--out", tmp_path / "a.nc"]
    assert_one_error(
        run(*command), 2, "because nobody declares covariates public", "covariates=SOURCE"
    )
    assert run(*command, "--formula", "~ 1")[0] == 0
    command[-1] = tmp_path / "b.nc"
    assert run(*command, "--conditional")[0] == 0
    assert read_record(group_of(tmp_path / "b.nc").attrs)["claim"] == "conditional"


def test_variances_computed_from_the_outcomes_cannot_be_declared_public(records, run, tmp_path):
    arguments = ["release", records, *COLUMNS, *MODEL, *DECLARE, "--out", tmp_path / "a.nc"]
    for more in ([], ["--conditional"], ["--variance", "linearized"]):
        result = run(*arguments, *more)
        assert_one_error(result, 2, "--declare sampling_variance", "public --rate", "outcomes")


# Options reach the release


def test_household_bounds_mechanism_and_delta_reach_the_release(command, run):
    code, out, _ = run(*command, "--unit", "household", "--mechanism", "independent",
                       "--delta", "3e-7")  # fmt: skip
    group = group_of(command[-1])
    record = read_record(group.attrs)
    assert code == 0 and record["unit"] == "household" and record["mechanism"] == "independent"
    epsilon = pdp.epsilon_zcdp(group["rho"].item(), 3e-7)
    assert f"{round_up(epsilon)} from zCDP alone at delta 3e-07" in out
    assert "one household" in out


def test_bounds_scale_prices_with_the_outcome(records, run, tmp_path):
    """A thousand times the outcome, its range and sigma_u: the same price."""
    frame = pd.read_csv(records)
    scaled = frame.assign(smoker=1000.0 * frame["smoker"] - 500)
    scaled.to_csv(tmp_path / "scaled.csv", index=False)
    rho = []
    for path, sigma, bounds in (
        (records, "0.04", []),
        (tmp_path / "scaled.csv", "40", ["--bounds", "-500", "500"]),
    ):
        target = tmp_path / f"{len(rho)}.nc"
        code, _, _ = run("release", path, *COLUMNS, "--sigma-u", sigma, *bounds, "--conditional",
                         "--out", target)  # fmt: skip
        assert code == 0
        rho.append(group_of(target)["rho"].item())
    assert read_record(group_of(target).attrs)["bounds"] == [-500.0, 500.0]
    # The grid of the estimates and the rounding of the draw are relative to the range.
    assert rho[1] == pytest.approx(rho[0], rel=1e-9)


CODES = """ST,PUMA,PWGTP,hit
04,00100,20,1
04,00100,30,0
04,00100,50,1
04,00101,25,1
04,00101,25,1
04,00101,30,0
08,00100,10,0
08,00100,40,1
08,00100,30,0
08,00101,15,0
08,00101,35,0
08,00101,70,1
NA,00101,5,1
NA,00101,5,0
"""
COVARIATES = """ST,PUMA,x
08,00101,0.2
04,00100,0.1
04,00101,0.5
08,00100,0.9
NA,00101,0.4
08,00900,0.6
"""
PUMAS = ["04 00100", "04 00101", "08 00100", "08 00101", "NA 00101", "08 00900"]


@pytest.fixture
def pumas(tmp_path):
    (tmp_path / "pumas.csv").write_text(CODES)
    (tmp_path / "x.csv").write_text(COVARIATES)
    return [
        *("release", tmp_path / "pumas.csv", "--outcome", "hit", "--weight", "PWGTP"),
        *("--area", "ST", "--area", "PUMA", "--sigma-u", "0.1", *FORMAL),
        *("--formula", "~ x", "--covariates", tmp_path / "x.csv"),
    ]


def test_codes_are_text_and_join_covariates_and_areas_without_sample(pumas, run, tmp_path):
    code, _, _ = run(*pumas, "--out", tmp_path / "a.nc", "--table", tmp_path / "a.csv")
    table = pd.read_csv(tmp_path / "a.csv", dtype={"area": str}, keep_default_na=False)
    assert code == 0 and list(table["area"]) == PUMAS
    group = group_of(tmp_path / "a.nc")
    assert group["sensitivity"].sel(area="08 00900") == 0
    # Largest weight over the sum of the weights, raised by the grid of the estimates.
    np.testing.assert_allclose(
        group["sensitivity"].sel(area=PUMAS[:4]), [0.5, 0.375, 0.5, 7 / 12], rtol=0, atol=3e-12
    )


def test_covariates_that_lost_their_zeros_or_an_area_column_are_refused(pumas, run, tmp_path):
    (tmp_path / "x.csv").write_text(COVARIATES.replace("04,", "4,"))
    result = run(*pumas, "--out", tmp_path / "a.nc")
    assert_one_error(result, 2, "no covariates for areas 04 00100, 04 00101")
    (tmp_path / "x.csv").write_text(COVARIATES.replace("PUMA", "puma"))
    assert_one_error(run(*pumas, "--out", tmp_path / "a.nc"), 2, "x.csv has no column 'PUMA'")
    (tmp_path / "x.csv").write_text(COVARIATES)
    for formula, words in (
        ("~ z", "x.csv has no column 'z'; it has 'ST', 'PUMA', 'x'"),
        ("~ X", "x.csv has no column 'X' (did you mean 'x'?)"),
        ("~ (", "--formula: Could not find matching context marker. ~ ("),
        ("~ .", "--formula: '.' names no column here: write the columns out"),
        ("~ x | x", "--formula must be a single sum of terms"),
        ("hit ~ x", "--formula describes the covariates only: write '~ x'"),
        ("~ 0", "the formula has no term"),
    ):
        result = run(*pumas, "--formula", formula, "--out", tmp_path / "a.nc")
        assert_one_error(result, 2, words)
    assert not (tmp_path / "a.nc").exists()


def test_parquet_gives_the_release_that_csv_gives(records, command, run, tmp_path):
    frame = pd.read_csv(records, dtype={"area": str})
    frame = pd.concat([frame, frame.head(3).assign(area=None)])
    frame.astype({"area": "category"}).to_parquet(tmp_path / "records.parquet", index=False)
    code, out, _ = run(*command[:1], tmp_path / "records.parquet", *command[2:-1],
                       tmp_path / "b.nc", "--missing", "drop")  # fmt: skip
    assert code == 0 and "3 without an area" in out
    assert run(*command)[0] == 0
    a, b = group_of(command[-1]), group_of(tmp_path / "b.nc")
    assert list(a["area"].values) == list(b["area"].values)
    # Sums of weights in another order.
    np.testing.assert_allclose(a["rho_respondent"], b["rho_respondent"], rtol=1e-12)


def test_parquet_without_its_extra_names_the_extra(command, run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "records.parquet").write_bytes(b"PAR1")
    result = run(*command[:1], tmp_path / "records.parquet", *command[2:])
    assert_one_error(result, 2, "pip install 'pymc_dp[parquet]'")


def test_a_zarr_store_is_written_with_the_same_claim(command, run, tmp_path):
    pytest.importorskip("zarr")
    code, out, _ = run(*command[:-1], tmp_path / "a.zarr")
    assert code == 0 and str(tmp_path / "a.zarr") in out
    assert read_record(group_of(tmp_path / "a.zarr").attrs)["claim"] == "formal"


def test_only_the_columns_that_are_needed_are_read(records, command, run, tmp_path):
    """A column that could not be read as numbers or used as text does no harm."""
    frame = pd.read_csv(records)
    frame["notes"] = [f"{k}, \"said\" 'so'" for k in range(len(frame))]
    frame.to_csv(tmp_path / "more.csv", index=False)
    assert run(command[0], tmp_path / "more.csv", *command[2:])[0] == 0


# Refusals before the draw


@pytest.mark.parametrize("taken", ["release.nc", "table.csv", "plots/rdp.png"])
def test_an_existing_target_is_refused_before_the_draw_and_the_charge(
    command, run, tmp_path, taken
):
    ledger = pdp.PrivacyLedger(tmp_path / "programme.ledger", 100.0, create=True)
    (tmp_path / "plots").mkdir()
    (tmp_path / taken).write_text("mine")
    more = ["--table", tmp_path / "table.csv", "--plots", tmp_path / "plots"]
    assert_one_error(run(*command, *more, "--ledger", ledger.path), 2, f"{taken} exists")
    assert (tmp_path / taken).read_text() == "mine" and ledger.spent == 0
    written = {"release.nc", "table.csv", "plots/rdp.png"} - {taken}
    assert not any((tmp_path / name).exists() for name in written)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--out", "release.txt"], "--out must end in .nc or .zarr"),
        (["--out", "nowhere/release.nc"], "no folder nowhere"),
        (["--table", "table.xlsx"], "--table must end in .csv"),
        (
            ["--outcome", "smokes"],
            "no column 'smokes' (did you mean 'smoker'?); it has 'area', 'household'",
        ),
        (["--weight", "w"], "no column 'w'"),
        (["--unit", "family"], "no column 'family'"),
        (["--outcome", "age_band"], "records.csv, line 2: no number in column 'age_band'"),
        (["--outcome", "weight"], "--outcome and --weight name the same column 'weight'"),
        (["--area", "area"], "--area names the column 'area' twice"),
        (["--unit", "weight"], "--weight and --unit name the same column 'weight'"),
        (["--bounds", "1", "0"], "--bounds takes the lowest and then the highest value"),
        (["--bounds", "0", "30"], "--rate is for outcomes of 0 and 1"),
        (["--bounds", "0", "inf"], "--bounds: inf is no number"),
        (["--variance", "linearized"], "--rate is a public rate, for sampling variances from the"),
        (["--rate", "1.0"], "--rate: 1.0 does not lie between 0 and 1; see"),
        (
            ["--rate", "17"],
            "--rate: 17 does not lie between 0 and 1; 17 looks like a percentage: --rate 0.17?",
        ),
        (["--rate", "17%"], "--rate: 17% is a percentage: write 0.17"),
        (["--sigma-u", "-1"], "--sigma-u: -1 is negative"),
        (
            ["--sigma-u", "4"],
            "--sigma-u 4 is more than the range of the outcome, 0 to 1; 4 looks "
            "like a percentage: --sigma-u 0.04?",
        ),
        (["--sigma-u", "1000"], "--sigma-u 1000 is more than the range of the outcome, 0 to 1"),
        (["--design-factor", "0"], "--design-factor: 0 is not positive"),
        (["--sep", "x"], "--sep: 'x' cannot be it"),
        (["--sep", ";"], "header is not separated by ';', but looks so by ',' (--sep)"),
        (["--encoding", "latin1x"], "no encoding 'latin1x' is known (did you mean 'latin1'?)"),
        (["--encoding", "hex"], "no encoding 'hex' is known"),
        (["--encoding", "utf-16"], "not UTF-16"),
        (["--na-values", "smokr=9"], "--na-values smokr=...: "),
        (["--declare", "sigma_u"], "KEY=SOURCE"),
        (["--declare", "sigma_u=again"], "names 'sigma_u' twice"),
        (["--declare", "sigma=x"], "--declare knows no 'sigma' (did you mean 'sigma_u'?)"),
        (["--declare", "weights= "], "--declare weights= needs its source in words"),
        (
            ["--ledger", "none.ledger"],
            "start a new programme: pymc-dp ledger create none.ledger --rho BUDGET",
        ),
        (["--formula", "~ x"], "--formula '~ x' names columns: give their file with --covariates"),
        (
            ["--out", "release.csv"],
            "--out must end in .nc or .zarr, not 'release.csv'; a table of "
            "one line an area is --table",
        ),
        (["--out", "x" * 300 + ".nc"], "cannot be written: File name too long"),
        (["--plots", "nowhere/plots"], "no folder nowhere"),
        (["--covariates", "none.csv"], "no file none.csv"),
    ],
)
def test_unusable_input_is_one_line_and_draws_nothing(command, run, tmp_path, monkeypatch,
                                                      change, words):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert_one_error(run(*command, *change), 2, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.csv", "no file"),
        ("folder.csv", "is a folder"),
        ("records.xlsx", "must end in .csv, .tsv, .txt, .parquet, .pq; text also in .gz"),
        ("empty.csv", "is empty"),
        ("header.csv", "has a header and no rows"),
        ("cut.csv.gz", "is damaged, or was not copied whole"),
        ("twice.csv", "has more than one column 'smoker'"),
        ("text.parquet", "is no Parquet file, or a damaged one"),
        ("comma.csv", ", line 2: 6 cells under a header of 5: rows end in one more ','"),
        ("short.csv", ", line 601: 3 cells under a header of 5"),
        ("latin.csv", ", line 3: not UTF-8; name its encoding, such as --encoding latin-1"),
        ("utf16.csv", "looks like UTF-16 without its mark: --encoding utf-16-le"),
        ("sheet.csv", "is no delimited table, but a zip or a workbook"),
        ("quote.csv", ", line 2: a quote that is not closed"),
    ],
)
def test_unusable_files_of_records_are_named(records, command, run, tmp_path, name, words):
    text = records.read_bytes()
    header, _, rest = text.partition(b"\n")
    files = {
        "records.xlsx": text,
        "empty.csv": b"",
        "header.csv": header,
        "cut.csv.gz": gzip.compress(text)[:2000],
        "twice.csv": text.replace(b"household", b"smoker", 1),
        "text.parquet": text,
        "comma.csv": header + b"\n" + rest.replace(b"\n", b",\n"),
        "short.csv": b",".join(text.rstrip().split(b",")[:-2]),
        "latin.csv": text.replace(b"R1-0001", b"R1-M\xe1laga").replace(b"R01-0001", b"M\xe1laga"),
        "utf16.csv": text.decode().encode("utf-16-le"),
        "sheet.csv": b"PK\x03\x04" + text,
        "quote.csv": header + b'\n"' + rest,
    }
    if name in files:
        (tmp_path / name).write_bytes(files[name])
    if name == "folder.csv":
        (tmp_path / name).mkdir()
    line = assert_one_error(run(command[0], tmp_path / name, *command[2:]), 2, words)
    assert str(tmp_path / name) in line
    assert not command[-1].exists()


def test_outcomes_outside_the_range_are_counted_and_never_shown(records, command, run, tmp_path):
    frame = pd.read_csv(records)
    frame.loc[:2, "smoker"] = 77
    frame.to_csv(tmp_path / "codes.csv", index=False)
    result = run(command[0], tmp_path / "codes.csv", *command[2:])
    assert "77" not in assert_one_error(result, 2, "3 outcomes outside 0..1")


def test_missing_values_are_refused_or_left_out_and_counted(records, command, run, tmp_path):
    frame = pd.read_csv(records, dtype=str)
    frame.loc[0, "smoker"], frame.loc[1, "weight"], frame.loc[2, "area"] = ".", "NA", " "
    frame.to_csv(tmp_path / "gaps.csv", index=False)
    arguments = [command[0], tmp_path / "gaps.csv", *command[2:]]
    assert_one_error(run(*arguments), 2, "in 1 records")
    code, out, _ = run(*arguments, "--missing", "drop")
    assert code == 0
    assert "1 without an area, 1 without a weight, 1 without an outcome" in out


def test_arguments_that_do_not_parse_are_one_line(capsys):
    for arguments, words in (
        (["release"], "required: RECORDS, --outcome"),
        (["releases"], "invalid choice"),
        (["ledger", "show", "x", "--delta", "1"], "between 0 and 1"),
        ([], "COMMAND"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        out, err = capsys.readouterr()
        assert stop.value.code == 2 and not out
        assert err.count("\n") == 1 and err.startswith("pymc-dp: error: ") and words in err


def test_messages_about_records_name_the_file_and_options(records, command, run, tmp_path):
    """Households that are numbered anew in every area, an area without variance."""
    frame = pd.read_csv(records).assign(number=lambda d: d.groupby("area").cumcount() // 2)
    path = tmp_path / "numbers.csv"
    frame.to_csv(path, index=False)
    line = assert_one_error(run(command[0], path, *command[2:], "--unit", "number"), 2, str(path))
    assert "--unit area --unit number" in line and "unit=" not in line
    code, _, _ = run(command[0], path, *command[2:], "--unit", "area", "--unit", "number")
    assert code == 0
    frame.loc[frame["area"] == frame["area"].iloc[0], "smoker"] = 1
    frame.to_csv(path, index=False)
    plain = ["release", path, *COLUMNS, *MODEL, "--conditional", "--out", tmp_path / "b.nc"]
    assert_one_error(run(*plain), 2, str(path), "zero: R", "with a public --rate they come from")


def test_a_fault_of_the_program_is_one_line_and_shows_no_value(command, run, monkeypatch):
    def fail(*_, **__):
        raise KeyError("0.73914")

    monkeypatch.setattr("pymc_dp.survey.estimate.hajek", fail)
    line = assert_one_error(
        run(*command), 4, "a fault of this program, KeyError in pymc_dp.cli.app"
    )
    assert "0.73914" not in line


def test_a_pymc_that_cannot_be_loaded_is_one_line(command, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymc_dp.release.release", None)
    assert_one_error(run(*command), 2, "PyMC cannot be loaded (ModuleNotFoundError", "pip check")
    assert not command[-1].exists()


# Pictures are no part of the release


@pytest.mark.parametrize("broken", ["missing", "at import", "at work"])
def test_without_a_working_matplotlib_there_is_a_release_and_a_note(
    command, run, tmp_path, monkeypatch, broken
):
    def fail(*_, **__):
        raise AttributeError("module 'numpy' has no attribute 'bool8'")

    if broken == "missing":
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    elif broken == "at import":
        monkeypatch.delitem(sys.modules, "pymc_dp.plots.release", raising=False)
        finder = type("Finder", (), {"find_spec": lambda self, name, *_: fail()
                                     if name == "pymc_dp.plots.release" else None})  # fmt: skip
        monkeypatch.setattr(sys, "meta_path", [finder(), *sys.meta_path])
    else:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    code, out, err = run(*command, "--plots", tmp_path / "plots", "--table", tmp_path / "a.csv")
    assert code == 0 and not errors(err)
    [note] = [line for line in err.splitlines() if line.startswith("pymc-dp: note: ")]
    assert "no pictures, matplotlib" in note
    assert str(command[-1]) in out and "pictures" not in out
    assert group_of(command[-1])["theta"].size == len(pd.read_csv(tmp_path / "a.csv")) == 6
    assert not list((tmp_path / "plots").iterdir())


# The README


def test_the_readmes_plan_prices_the_readmes_release_which_is_formal(run, tmp_path, monkeypatch):
    """One rule for both: with a rate, sampling variances come from the weights and the rate."""
    monkeypatch.chdir(tmp_path)
    survey = datasets.simulate_state_survey().rename(columns={"area": "county", "weight": "w"})
    survey.to_csv("survey.csv", index=False)
    readme = Path(__file__).resolve().parents[2] / "README.md"
    text = readme.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("pymc-dp ")]
    commands = {words[1]: words[1:] for words in lines if "survey.csv" in words}
    assert set(commands) == {"plan", "release"}
    code, _, _ = run(*commands["plan"], "--out", "plan.csv")
    assert code == 0
    code, said, _ = run(*commands["release"])
    assert code == 0 and "Claim: formal" in said
    group = group_of(commands["release"][commands["release"].index("--out") + 1])
    plan = pd.read_csv("plan.csv")
    sigma_u = float(commands["release"][commands["release"].index("--sigma-u") + 1])
    planned = plan[plan["sigma_u"] == sigma_u]
    assert len(planned) == 52
    # The same formulas, with the same weights and rate.
    assert planned["rho"].max() == pytest.approx(group["rho"].item(), rel=1e-12)


# After the draw nothing is lost


def test_a_target_taken_during_the_draw_is_left_and_the_release_saved_beside_it(
    command, run, tmp_path, monkeypatch
):
    """Somebody else's file appears at the target while the noise is drawn."""
    ledger = pdp.PrivacyLedger(tmp_path / "programme.ledger", 100.0, create=True)
    target, draw, drawn = command[-1], PrivateRelease.draw, []

    def draw_slowly(self, **options):
        drawn.append(draw(self, **options))
        target.write_text("theirs")
        return drawn[0]

    monkeypatch.setattr(PrivateRelease, "draw", draw_slowly)
    table = tmp_path / "table.csv"
    result = run(*command, "--table", table, "--ledger", ledger.path)
    saved = tmp_path / "release.recovered.nc"
    assert_one_error(result, 1, f"{target} could not be written", f"saved to {saved}", "paid for")
    assert target.read_text() == "theirs"
    theta = containers.read_group(drawn[0], "private_release")["theta"]
    np.testing.assert_array_equal(group_of(saved)["theta"], theta)
    np.testing.assert_array_equal(pd.read_csv(table)["released"], theta.values[0, 0])
    assert ledger.spent == group_of(saved)["rho"].item()


@pytest.fixture(scope="module")
def drawn():
    """A draw with its group, for what happens after it."""
    records = datasets.simulate_state_survey(areas=4, respondents=300)
    direct = pdp.hajek(
        records, outcome="smoker", weight="weight", area="area", variance="kish", rate=0.15
    )
    release = PrivateRelease(
        pdp.fay_herriot(direct, sigma_u=0.04), direct["sensitivity"], assumptions=DECLARED
    )
    return release.draw(), release.released


def test_the_release_goes_to_the_next_place_and_at_last_to_standard_output(
    drawn, tmp_path, monkeypatch, capsys
):
    idata, group = drawn
    places = [tmp_path / name for name in ("target", "here", "home", "temporary")]
    target = places[0] / "a.nc"
    for place in places:
        place.mkdir()
    target.write_text("theirs")
    monkeypatch.chdir(places[1])
    monkeypatch.setenv("HOME", str(places[2]))
    monkeypatch.setenv("USERPROFILE", str(places[2]))
    monkeypatch.setattr(tempfile, "tempdir", str(places[3]))

    saved = [files.save(idata, target, conditional=False) for _ in places]
    assert saved[:3] == [place / "a.recovered.nc" for place in places[:3]]
    assert saved[3].parent.parent == places[3] and saved[3].name == "a.recovered.nc"
    for path in saved:
        np.testing.assert_array_equal(group_of(path)["theta"], group["theta"])
    capsys.readouterr()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert files.save(idata, target, conditional=False) is None
    out, err = capsys.readouterr()
    assert "printed to standard output" in err
    record, table = out.split("\n", 1)
    assert read_record({"privacy": record})["claim"] == "formal"
    printed = pd.read_csv(io.StringIO(table))
    assert list(printed["area"]) == list(group["area"].values)
    np.testing.assert_array_equal(printed["released"], group["theta"].values[0, 0])


def test_an_interrupt_while_writing_keeps_the_release(drawn, tmp_path, monkeypatch, capsys):
    idata, group = drawn
    write = files.write_public

    def interrupted_once(idata, path, **options):
        if path.name == "a.nc":
            raise KeyboardInterrupt
        write(idata, path, **options)

    monkeypatch.setattr(files, "write_public", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        files.save(idata, tmp_path / "a.nc", conditional=False)
    np.testing.assert_array_equal(group_of(tmp_path / "a.recovered.nc")["theta"], group["theta"])
    assert "could not be written" in capsys.readouterr().err


def test_a_table_that_cannot_be_written_leaves_the_release_and_says_where(
    command, run, tmp_path, monkeypatch
):
    table, draw = tmp_path / "table.csv", PrivateRelease.draw

    def draw_slowly(self, **options):
        table.write_text("theirs")
        return draw(self, **options)

    monkeypatch.setattr(PrivateRelease, "draw", draw_slowly)
    result = run(*command, "--table", table)
    assert_one_error(result, 1, f"the release is in {command[-1]}", "table.csv")
    assert group_of(command[-1])["theta"].size == 6 and table.read_text() == "theirs"


def test_the_rehearsal_finds_what_cannot_be_written_before_the_charge(
    records, command, run, tmp_path
):
    """An area label that no file format keeps would otherwise be found after the draw."""
    frame = pd.read_csv(records).replace({"area": {"R1": "R\0one", "R01": "R\0one"}})
    frame.to_csv(tmp_path / "odd.csv", index=False)
    frame.to_parquet(tmp_path / "odd.parquet", index=False)
    ledger = pdp.PrivacyLedger(tmp_path / "programme.ledger", 100.0, create=True)
    result = run(command[0], tmp_path / "odd.parquet", *command[2:], "--ledger", ledger.path)
    assert_one_error(result, 2, "1 area labels cannot be kept as text")
    assert ledger.spent == 0 and not command[-1].exists()
    assert not [p.name for p in tmp_path.iterdir() if "rehearsal" in p.name]


# The ledger, the version, and the start


def test_ledger_is_created_and_shown_with_entries_and_what_is_left(run, tmp_path):
    path = tmp_path / "programme.ledger"
    code, out, _ = run("ledger", "create", path, "--rho", "2.5", "--conditional")
    assert code == 0 and "rho 2.5" in out and "no claims yet" in out
    ledger = pdp.PrivacyLedger(path)
    ledger.charge(0.5, label="smoking [2013]")
    ledger.charge(0.25, label="diabetes", claim="conditional", part="north")
    code, out, _ = run("ledger", "show", path, "--delta", "1e-5")
    assert code == 0
    for words in ("smoking [2013]", "diabetes", "north", "everybody", "rho 0.75", "rho 1.75"):
        assert words in out
    assert "formal and conditional claims" in out
    for rho, words in ((2.5, "of the budget"), (0.75, "of what is spent")):
        assert f"{round_up(pdp.epsilon_zcdp(rho, 1e-5))} {words}" in out

    assert ledger.programme == "programme"
    named = tmp_path / "named"
    assert run("ledger", "create", named, "--rho", "1", "--programme", "Health survey")[0] == 0
    assert pdp.PrivacyLedger(named).programme == "Health survey"
    assert_one_error(run("ledger", "create", path, "--rho", "9"), 2, "exists")
    assert_one_error(run("ledger", "show", tmp_path / "none"), 2, "there is no ledger")
    (tmp_path / "other").write_text("not a ledger")
    assert_one_error(run("ledger", "show", tmp_path / "other"), 2, "not a privacy ledger")
    assert_one_error(run("ledger", "create", tmp_path / "new", "--rho", "-1"), 2, "--rho")


def test_progress_is_a_tick_on_a_terminal_and_a_line_elsewhere(monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with cli_output.step("counting"):
        assert capsys.readouterr().err == "pymc-dp: counting\n"
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with cli_output.step("counting [1]"):
        pass
    out, err = capsys.readouterr()
    assert "✓ counting [1]" in err and not out


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"pymc_dp {pdp.__version__}\n"


def test_module_runs_and_its_help_loads_no_more_than_the_package():
    help_of = subprocess.run(
        [sys.executable, "-m", "pymc_dp", "--help"], capture_output=True, text=True, check=True
    )
    for words in ("demo", "plan", "release", "ledger", "exit status"):
        assert words in help_of.stdout
    script = """
import contextlib, io, sys
import pymc_dp
before = set(sys.modules)
from pymc_dp._checks import round_up
from pymc_dp.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["release", "--help"])
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""
    new = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"matplotlib", "narwhals", "numpy", "opendp", "pandas", "pymc", "rich", "xarray"}
    assert "pymc_dp" in new.stdout.split() and heavy.isdisjoint(new.stdout.split())
