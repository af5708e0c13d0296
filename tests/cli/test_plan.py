"""``pymc-dp plan``: what it says is what a release would cost, and no outcome is read for it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pymc_dp as pdp
from pymc_dp import datasets
from pymc_dp._checks import round_up
from pymc_dp.cli import records as cli_records
from pymc_dp.cli.app import main

MODEL = ["--sigma-u", "0.04", "--rate", "0.15"]
COLUMNS = ["--weight", "weight", "--area", "area"]
FORMAL = ["--declare", "sigma_u=a report", "sampling_variance=weights and a national rate"]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return datasets.simulate_state_survey(areas=8, respondents=900)


@pytest.fixture(scope="module")
def records(frame, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("survey") / "records.csv"
    frame.to_csv(path, index=False)
    return path


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


def flat(text: str) -> str:
    """What a screen says, without its frames and line breaks."""
    return " ".join(re.sub("[╭╮╰╯├┤┬┴┼─│]", " ", text).split())


def planned_table(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"area": str})


def priced(frame, *, sigma_u=0.04, formula="~ 1", covariates=None, mechanism="joint", **survey):
    """A release of the same records, with their outcomes."""
    options = {"outcome": "smoker", "weight": "weight", "area": "area", "rate": 0.15} | survey
    direct = pdp.hajek(frame, variance="kish", **options)
    model = pdp.fay_herriot(direct, formula, covariates, sigma_u=sigma_u)
    return pdp.PrivateRelease(model, direct["sensitivity"], mechanism=mechanism)


def assert_one_error(result, *words):
    code, out, err = result
    [line] = [line for line in err.splitlines() if line.startswith("pymc-dp: error: ")]
    assert code == 2 and not out and all(word in line for word in words), line
    assert "Traceback" not in err


# A plan is the guarantee of the release


@pytest.mark.parametrize("mechanism", ["joint", "independent"])
@pytest.mark.parametrize("target", [{}, {"rho": 0.05}, {"epsilon": 1.5, "delta": 3e-7}])
def test_plan_equals_the_guarantee_of_the_release(frame, records, run, tmp_path, mechanism, target):
    covariates = datasets.state_covariates(8)
    covariates.rename_axis("area").to_csv(tmp_path / "x.csv")
    release = priced(
        frame,
        formula="~ college",
        covariates=covariates,
        mechanism=mechanism,
        unit="household",
        design_factor=1.2,
    )
    raw, release = release, release.calibrate(**target) if target else release
    options = [f"--{key}={value}" for key, value in target.items()]
    code, out, err = run(
        *("plan", records, *COLUMNS, *MODEL, "--unit", "household", "--design-factor", 1.2),
        *("--formula", "~ college", "--covariates", tmp_path / "x.csv"),
        *("--mechanism", mechanism, *options, "--out", tmp_path / "plan.csv"),
    )
    assert code == 0 and "error" not in err
    want, table = release.guarantee, planned_table(tmp_path / "plan.csv")
    price = want["rho_respondent" if mechanism == "joint" else "rho_independent"]
    assert list(table["area"]) == list(want["area"].values)
    # The same formulas in the same order; the file keeps all digits.
    for column, values in (
        ("rho", price),
        ("sensitivity", want["sensitivity"]),
        ("smoothed_sd", want["theta_smoothed_sd"]),
    ):
        np.testing.assert_allclose(table[column], values, rtol=1e-12)
    said = flat(out)
    assert f"rho (zCDP) {round_up(want['rho'].item())} for the whole release" in said
    error = round_up(float(np.sqrt((want["theta_smoothed_sd"] ** 2).mean())))
    assert f"expected error {error}" in said and "one household" in said
    if target:
        factor = release.report["sampling_variance_factor"]
        np.testing.assert_allclose(table["sampling_variance_factor"], factor, rtol=1e-12)
        touched = release.report.attrs["areas_touched"]
        assert touched and f"met by tempering {touched} of 8 areas" in said
        assert f"without a target rho {round_up(raw.guarantee['rho'].item())}" in said
    else:
        assert "sampling_variance_factor" not in table and "target" not in said


def test_king_county_plan_is_the_release_of_those_who_answered(shared, run, tmp_path):
    source = shared / "data" / "brfss_king_county_2009_2013.csv.gz"
    everybody = pd.read_csv(source)
    answered = everybody.dropna(subset=["smoker", "hra"])
    answered[["hra", "w"]].to_csv(tmp_path / "answered.csv", index=False)
    columns = ["--weight", "w", "--area", "hra", *MODEL]
    code, out, _ = run("plan", tmp_path / "answered.csv", *columns, "--out", tmp_path / "a.csv")
    want = priced(answered, weight="w", area="hra").guarantee
    table = planned_table(tmp_path / "a.csv")
    np.testing.assert_allclose(table["rho"], want["rho_respondent"], rtol=1e-12)
    assert code == 0 and "16,005 records" in out
    assert f"in {want['rho_respondent'].idxmax().item()}, the dearest" in flat(out)

    # The file as it is: areas are missing in 108 records, and nobody looks at outcomes.
    assert_one_error(run("plan", source, *columns), "no area (missing or blank) in 108 records")
    code, out, _ = run("plan", source, *columns, "--missing", "drop")
    assert code == 0 and "108 without an area, 0 without a weight" in out
    assert f"{len(everybody) - 108:,} records" in out


# No outcome


def test_no_outcome_is_read(frame, records, run, tmp_path, monkeypatch):
    """Codes, text, nothing, or no such column at all: the same screen and the same file."""
    read, asked = cli_records.read_rows, []

    def noted(table, *, texts, numbers):
        asked.append([*numbers, *texts])
        return read(table, texts=texts, numbers=numbers)

    monkeypatch.setattr(cli_records, "read_rows", noted)
    variants = {
        "codes": frame.assign(smoker=97),
        "text": frame.assign(smoker="refused"),
        "missing": frame.assign(smoker=None),
        "other": frame.assign(smoker=1 - frame["smoker"]),
        "absent": frame.drop(columns="smoker"),
    }
    command = ["plan", "records.csv", *COLUMNS, *MODEL, "--rho", "0.05", "--out", "plan.csv"]
    results = set()
    for name, variant in {"as it is": frame, **variants}.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        variant.to_csv("records.csv", index=False)
        code, out, _ = run(*command)
        assert code == 0
        results.add((out, Path("plan.csv").read_text()))
    assert len(results) == 1
    assert all(columns == ["weight", "area"] for columns in asked)


def test_an_outcome_is_no_argument(records, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["plan", str(records), *COLUMNS, *MODEL, "--outcome", "smoker"])
    assert stop.value.code == 2 and "unrecognized arguments: --outcome" in capsys.readouterr().err


# Several plans


@pytest.mark.parametrize("target", [[], ["--rho", "0.05"], ["--epsilon", "1", "--delta", "2e-6"]])
def test_several_sigma_u_are_compared(frame, records, run, tmp_path, target):
    sigmas = [0.02, 0.04, 0.03]
    more = [a for sigma in [*sigmas, 0.02] for a in ("--sigma-u", sigma)]
    code, out, _ = run("plan", records, *COLUMNS, "--rate", "0.15", *more, *target,
                       "--out", tmp_path / "plans.csv")  # fmt: skip
    rows = [line.split("│")[1:-1] for line in out.splitlines() if re.match(r"│\s+0\.", line)]
    rows = [[cell.strip() for cell in row] for row in rows]
    table = planned_table(tmp_path / "plans.csv")
    assert code == 0 and [float(row[0]) for row in rows] == sigmas
    assert list(table["sigma_u"]) == [s for s in sigmas for _ in range(8)]
    for sigma, row in zip(sigmas, rows, strict=True):
        raw = release = priced(frame, sigma_u=sigma)
        if target:
            asked = {k.strip("-"): float(v) for k, v in zip(target[::2], target[1::2], strict=True)}
            release = raw.calibrate(**asked)
            assert row[1] == round_up(raw.guarantee["rho"].item())
            assert row[4] == str(release.report.attrs["areas_touched"])
        want = release.guarantee
        assert row[1 + bool(target)] == round_up(want["rho"].item())
        dearest = raw.guarantee["rho_respondent"].idxmax().item()
        assert row[-2] == dearest
        assert row[-1] == round_up(float(np.sqrt((want["theta_smoothed_sd"] ** 2).mean())))
        epsilon = round_up(want["epsilon"].sel(delta=1e-6).item())
        assert row[2 + bool(target)] == ("at most 1" if "2e-6" in target else epsilon)
        found = table.loc[table["sigma_u"] == sigma, "rho"]
        np.testing.assert_allclose(found, want["rho_respondent"], rtol=1e-12)
    assert "conditional" in out and "--declare sampling_variance=SOURCE sigma_u=SOURCE" in flat(out)


# What the screen says is true


def test_the_claim_is_said_and_what_a_formal_one_lacks(records, run, tmp_path):
    command = ["plan", records, *COLUMNS, *MODEL]
    _, out, _ = run(*command)
    said = flat(out)
    assert "conditional (treating the variance components as fixed)" in said
    assert "for a formal claim --declare sampling_variance=SOURCE sigma_u=SOURCE" in said
    _, out, _ = run(*command, *FORMAL[:2])
    assert "for a formal claim --declare sampling_variance=SOURCE" in flat(out)
    _, out, _ = run(*command, *FORMAL, "--out", tmp_path / "plan.csv")
    said = flat(out)
    assert "claim formal" in said and "for a formal claim" not in said
    assert set(planned_table(tmp_path / "plan.csv")["claim"]) == {"formal"}


def test_covariates_without_a_source_are_named_too(records, run, tmp_path):
    covariates = datasets.state_covariates(8)
    covariates.rename_axis("area").to_csv(tmp_path / "x.csv")
    command = ["plan", records, *COLUMNS, *MODEL, "--covariates", tmp_path / "x.csv", *FORMAL]
    _, out, _ = run(*command, "--formula", "~ college")
    assert "for a formal claim --declare covariates=SOURCE" in flat(out)
    _, out, _ = run(*command)
    assert "claim formal" in flat(out)


def test_a_target_that_is_met_as_it_is_touches_nothing(frame, records, run):
    command = ["plan", records, *COLUMNS, *MODEL]
    rho = priced(frame).guarantee["rho"].item()
    code, out, _ = run(*command, "--rho", repr(1.001 * rho))
    said = flat(out)
    assert code == 0 and "met as it is" in said and "without a target" not in said
    assert f"{round_up(rho)} for the whole release" in said


@pytest.mark.parametrize("delta", ["1e-6", "3e-7"])
def test_epsilon_is_said_within_its_target_at_any_delta(records, run, delta):
    """zCDP alone would say more than the target, and look as if it were missed."""
    _, out, _ = run("plan", records, *COLUMNS, *MODEL, "--epsilon", "1", "--delta", delta)
    said = flat(out)
    words = {"1e-6": "1.000 (exact Gaussian", "3e-7": "at most 1 (exact Gaussian"}[delta]
    assert f"epsilon at delta {float(delta):g} {words}; 1.0" in said
    assert f"target at most epsilon 1 at delta {float(delta):.15g}: met by tempering" in said


def test_areas_tempered_to_the_target_are_counted_not_named_the_dearest(records, run):
    _, out, _ = run("plan", records, *COLUMNS, *MODEL, "--rho", "0.001")
    assert re.search(r"0\.001000 in 8 areas, the dearest", flat(out))


def test_figures_fit_terminals_of_80_and_of_120_columns(records, run, monkeypatch):
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        for more in ([], ["--sigma-u", "0.02"], ["--sigma-u", "0.02", "--epsilon", "1"]):
            _, out, _ = run("plan", records, *COLUMNS, *MODEL, *more)
            assert max(map(len, out.splitlines())) <= min(width, 100)
            assert "…" not in out


# The file, and areas


def test_areas_without_sample_and_codes_stand_in_the_file(run, tmp_path):
    (tmp_path / "r.csv").write_text(
        "ST,PUMA,W\n04,00100,20\n04,00100,30\n04,00101,50\n04,00101,25\n08,00100,0\n"
        "08,00100,40\n08,00100,40\nNA,00100,7\nNA,00100,7\n"
    )
    (tmp_path / "x.csv").write_text(
        "ST,PUMA,x\n04,00100,.1\n08,00900,.6\n04,00101,.5\n08,00100,.9\nNA,00100,.3\n"
    )
    code, _, _ = run(
        *("plan", tmp_path / "r.csv", "--weight", "W", "--area", "ST", "--area", "PUMA", *MODEL),
        *("--formula", "~ x", "--covariates", tmp_path / "x.csv", "--out", tmp_path / "p.csv"),
    )
    table = pd.read_csv(tmp_path / "p.csv", keep_default_na=False).set_index("area")
    assert code == 0 and len(table) == 5
    nobody = table.loc["08 00900"]
    assert nobody["n"] == 0 and nobody["sampling_variance"] == "" and nobody["rho"] == 0
    # A record of weight 0 takes no part.
    assert table.loc["08 00100", "n"] == 2 and table.loc["NA 00100", "n_eff"] == 2
    # P (1 - P) / n_eff with n_eff = 50^2 / (20^2 + 30^2); printed to all digits.
    got = float(table.loc["04 00100", "sampling_variance"])
    assert got == pytest.approx(0.15 * 0.85 * 1300 / 2500, rel=1e-12)


def test_records_without_a_weight_are_refused_or_left_out_and_counted(frame, run, tmp_path):
    gaps = frame.astype({"weight": str})
    gaps.loc[[1, 4], "weight"], gaps.loc[2, "area"] = "NA", " "
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    command = ["plan", tmp_path / "gaps.csv", *COLUMNS, *MODEL]
    assert_one_error(run(*command), "area", "1 records")
    code, out, _ = run(*command, "--missing", "drop", "--out", tmp_path / "a.csv")
    assert code == 0 and "1 without an area, 2 without a weight" in out
    want = priced(frame.drop(index=[1, 2, 4])).guarantee["rho_respondent"]
    np.testing.assert_allclose(planned_table(tmp_path / "a.csv")["rho"], want, rtol=1e-12)


@pytest.mark.parametrize("kind", ["int64", "Int64", "float64"])
def test_parquet_weights_of_any_kind_of_number(frame, run, tmp_path, kind):
    whole = frame.assign(weight=np.ceil(frame["weight"])).astype({"weight": kind})
    if kind != "int64":
        whole.loc[3, "weight"] = None
    whole.drop(columns="smoker").to_parquet(tmp_path / "r.parquet", index=False)
    code, out, _ = run("plan", tmp_path / "r.parquet", *COLUMNS, *MODEL, "--missing", "drop",
                       "--out", tmp_path / "a.csv")  # fmt: skip
    assert code == 0 and f"{int(kind != 'int64')} without a weight" in out
    kept = whole.dropna(subset="weight").astype({"weight": float})
    want = priced(kept).guarantee["rho_respondent"]
    # Sums of weights in another order.
    np.testing.assert_allclose(planned_table(tmp_path / "a.csv")["rho"], want, rtol=1e-11)


# Refusals


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--out", "plan.txt"], "--out must end in .csv"),
        (["--out", "nowhere/plan.csv"], "no folder nowhere"),
        (["--weight", "w"], "no column 'w'"),
        (["--weight", "age_band"], "records.csv, line 2: no number in column 'age_band'"),
        (["--area", "w"], "no column 'w'"),
        (["--unit", "family"], "no column 'family'"),
        (["--rate", "1"], "--rate: 1 does not lie between 0 and 1"),
        (["--rate", "17"], "17 looks like a percentage: --rate 0.17?"),
        (["--sigma-u", "4"], "4 looks like a percentage: --sigma-u 0.04?"),
        (["--design-factor", "0"], "--design-factor: 0 is not positive"),
        (["--sigma-u", "-1"], "--sigma-u: -1 is negative"),
        (["--rho", "0"], "--rho: 0 is not positive"),
        (["--rho", "1e-40"], "--rho 1e-40: no release on the lattice"),
        (["--epsilon", "-1"], "--epsilon: -1 is not positive"),
        (["--formula", "~ ("], "--formula"),
        (["--formula", "~ x"], "--formula '~ x' names columns: give their file with --covariates"),
        (["--declare", "sigma=x"], "--declare knows no 'sigma' (did you mean 'sigma_u'?)"),
        (["--covariates", "none.csv"], "no file none.csv"),
    ],
)
def test_unusable_input_is_one_line_and_writes_nothing(records, run, tmp_path, monkeypatch,
                                                       change, words):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    command = ["plan", records, *COLUMNS, *MODEL, "--out", "plan.csv", "--missing", "drop"]
    assert_one_error(run(*command, *change), words)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_left_alone(records, run, tmp_path):
    (tmp_path / "plan.csv").write_text("mine")
    command = ["plan", records, *COLUMNS, *MODEL, "--out", tmp_path / "plan.csv"]
    assert_one_error(run(*command), "plan.csv exists")
    assert (tmp_path / "plan.csv").read_text() == "mine"


def test_arguments_that_do_not_go_together_are_one_line(records, capsys):
    for more, words in (
        (["--rho", "1", "--epsilon", "1"], "not allowed with"),
        (["--delta", "0"], "between 0 and 1"),
        (["--bounds", "0", "2"], "unrecognized"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["plan", str(records), *COLUMNS, *MODEL, *more])
        out, err = capsys.readouterr()
        assert stop.value.code == 2 and not out and err.count("\n") == 1 and words in err
