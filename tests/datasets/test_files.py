"""Files exactly as agencies offer them, and area-level tables; wrong ones are refused by name."""

from __future__ import annotations

import zipfile

import numpy as np
import pandas as pd
import polars as pl
import pytest
from factories.files import persons, respondents, write_xport, write_zip

from pymc_dp.datasets import read_acs_pums, read_brfss
from pymc_dp.survey.estimate import hajek
from pymc_dp.survey.table import direct_from_table

# Serial numbers as the files of each kind have them: one year, five years, before 2018.
SERIALS = {
    "2016": ["0000017", "1234567"],
    "2011-2015": ["2012000000001", "2015001234567"],
    "2007-2011": ["2007000000001", "2011001234567"],
    "2017-2021": ["2017000000002", "2018GQ0000003", "2021HU0000004"],
    "2019": ["2019HU0000005", "2019GQ0000006"],
    "2022": ["2022HU0000007", "2022GQ0000008"],
    "2023": ["2023HU0000009", "2023GQ0000010"],
}


class TestAcs:
    @pytest.mark.parametrize("state", ["ST", "STATE"], ids=["to 2022", "from 2023"])
    def test_a_zip_of_the_nation_in_two_files(self, tmp_path, state):
        data = persons(state)
        path = write_zip(
            tmp_path / "csv_pus.zip",
            psam_pusa__csv=data.iloc[:17],
            psam_pusb__csv=data.iloc[17:],
            ACS2023_PUMS_README__pdf=b"%PDF",
        )
        records = read_acs_pums(path, columns=["SCHL", "AGEP"])
        assert len(records) == 40
        assert records["puma"].tolist() == (data[state] + data["PUMA"]).tolist()
        assert records["SERIALNO"].tolist() == data["SERIALNO"].tolist()
        assert records["SCHL"].tolist() == data["SCHL"].tolist()
        ratio = pd.to_numeric(data["POVPIP"])
        np.testing.assert_array_equal(records["POVPIP"], ratio)
        np.testing.assert_array_equal(records["in_universe"], ratio.notna())
        poor = (ratio < 100).astype(float).where(ratio.notna())
        np.testing.assert_array_equal(records["poor"], poor)
        assert records.attrs["unit"] == "SERIALNO"

    def test_codes_that_lost_their_zeros_are_given_them_back(self, tmp_path):
        data = persons()
        path = tmp_path / "psam_p04.csv"
        data.assign(ST=data["ST"].astype(int), PUMA=data["PUMA"].astype(int)).to_csv(path)
        assert set(read_acs_pums(path)["puma"]) == {"0400101", "0423301", "5300101", "5323301"}

    def test_several_files_states_and_the_way_to_an_estimate(self, tmp_path):
        data = persons(replicates=80)
        paths = []
        for state, rows in data.groupby("ST"):
            paths.append(tmp_path / f"psam_p{state}.csv")
            rows.to_csv(paths[-1], index=False)
        records = read_acs_pums(paths, state=53, replicate_weights=True)
        assert set(records["puma"]) == {"5300101", "5323301"}
        roles = {"outcome": "poor", "weight": "PWGTP", "area": "puma", "universe": "in_universe"}
        roles |= {"unit": "SERIALNO", "spanning": "bound"}
        direct = hajek(records, variance="sdr", replicate_weights="PWGTP", **roles)
        assert direct.attrs["n_replicates"] == 80
        for label, rows in records.groupby("puma"):
            inside = rows.dropna(subset=["poor"])
            mean = np.average(inside["poor"], weights=inside["PWGTP"])
            one = direct.sel(area=label)
            assert one["estimate"].item() == pytest.approx(mean, abs=1e-12)
            assert one["n_outside_universe"].item() == len(rows) - len(inside)
            assert one["n_dropped"].item() == 0

    def test_the_household_is_suggested_until_a_unit_is_chosen_or_the_suggestion_dropped(
        self, tmp_path
    ):
        persons().to_csv(tmp_path / "psam_p04.csv", index=False)
        records = read_acs_pums(tmp_path / "psam_p04.csv")
        roles = {"outcome": "poor", "weight": "PWGTP", "area": "puma", "universe": "in_universe"}
        with pytest.warns(UserWarning, match=r"suggests unit='SERIALNO': an outcome that a house"):
            single = hajek(records, **roles)
        home = hajek(records, unit=["puma", "SERIALNO"], **roles)
        assert (home["sensitivity"] > single["sensitivity"]).any()
        del records.attrs["unit"]
        assert hajek(records, **roles).equals(single)

    @pytest.mark.parametrize("state", [53, "53", "wa", "WA"])
    def test_states_by_code_or_abbreviation(self, tmp_path, state):
        persons().to_csv(tmp_path / "psam_pus.csv", index=False)
        records = read_acs_pums(tmp_path / "psam_pus.csv", state=state)
        assert set(records["puma"]) == {"5300101", "5323301"}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda d: d.rename(columns={"PUMA": "PUMA20"}),
                "no column PUMA, but PUMA20: if every record has a code of that vintage",
            ),
            (
                lambda d: d.rename(columns={"PWGTP": "WGTP"}).drop(columns=["SPORDER", "POVPIP"]),
                "psam.csv: a household file .WGTP, no PWGTP.; persons are in csv_p",
            ),
            (
                lambda d: d.rename(columns={"PUMA": "PUMA10"}).assign(PUMA20="-9"),
                "a file of several years, with PUMAs of two vintages .PUMA10, PUMA20.",
            ),
            (
                lambda d: d.drop(columns=["POVPIP", "ST"]),
                "ACS, which has no column 'POVPIP'.*, 'ST .or STATE.'.*; it has 'RT'",
            ),
            (lambda d: d.assign(PUMA="-9"), "40 records without a code of state and PUMA"),
            (
                lambda d: d.assign(PWGTP="x"),
                "psam.csv, line 2: no number in column 'PWGTP'; correct it",
            ),
            (lambda d: d.iloc[:0], "psam.csv has a header and no rows"),
            (lambda d: d.iloc[:, :0], "psam.csv is empty"),
        ],
        ids=[
            "vintage",
            "household",
            "two vintages",
            "columns",
            "codes",
            "weights",
            "empty",
            "nothing",
        ],
    )
    def test_a_wrong_file_is_refused_and_described(self, tmp_path, change, message):
        path = tmp_path / "psam.csv"
        change(persons()).to_csv(path, index=False)
        with pytest.raises(ValueError, match=message):
            read_acs_pums(path)

    def test_another_state(self, tmp_path):
        path = tmp_path / "psam_p53.csv"
        persons().to_csv(path, index=False)
        with pytest.raises(ValueError, match="no records of state 06; the files hold 04, 53"):
            read_acs_pums(path, state="06")

    def write(self, folder, *kinds):
        """A file for each kind, of the same PUMAs."""
        for kind in kinds:
            serials = SERIALS[kind]
            rows = persons().iloc[: len(serials)].assign(SERIALNO=serials)
            rows.to_csv(folder / f"{kind}.csv", index=False)
        return [folder / f"{kind}.csv" for kind in kinds]

    @pytest.mark.parametrize(
        ("kinds", "held"),
        [
            (["2019", "2023"], r"2019.csv \(2019\), \S+2023.csv \(2023\); read them apart"),
            (["2016", "2022"], r"2016.csv \(no year\), \S+2022.csv \(2022\); read"),
            (["2023", "2017-2021"], r"2023.csv \(2023\), \S+ \(2017, 2018, 2021\); read"),
            (["2007-2011", "2019"], r"2007-2011.csv \(2007, 2011\), \S+2019.csv \(2019\); read"),
        ],
    )
    def test_years_with_pumas_of_two_vintages_are_refused(self, tmp_path, kinds, held):
        paths = self.write(tmp_path, *kinds)
        with pytest.raises(ValueError, match=rf"different vintages of PUMAs .*: \S+{held}"):
            read_acs_pums(paths)
        # What nobody asks for does not matter: a file without a record that is kept is no mixture.
        other = persons().assign(ST="06", SERIALNO=SERIALS["2022"][0])
        other.to_csv(tmp_path / "other.csv", index=False)
        assert len(read_acs_pums([paths[0], tmp_path / "other.csv"], state="04")) >= 2

    def test_two_vintages_within_one_file_are_refused(self, tmp_path):
        paths = self.write(tmp_path, "2019", "2023")
        both = pd.concat([pd.read_csv(path, dtype=str) for path in paths])
        both.to_csv(tmp_path / "both.csv", index=False)
        with pytest.raises(ValueError, match=r"both.csv \(2019, 2023\); read them apart"):
            read_acs_pums(tmp_path / "both.csv")

    @pytest.mark.parametrize(
        "kinds",
        [["2017-2021"], ["2011-2015"], ["2016", "2019"], ["2019", "2017-2021"], ["2022", "2023"]],
        ids="+".join,
    )
    def test_years_of_one_vintage_go_together(self, tmp_path, kinds):
        records = read_acs_pums(self.write(tmp_path, *kinds))
        assert records["SERIALNO"].tolist() == [s for kind in kinds for s in SERIALS[kind]]

    def test_a_household_in_two_files_is_refused(self, tmp_path):
        data = persons()
        data.to_csv(tmp_path / "psam_pusa.csv", index=False)
        data.iloc[:16].to_csv(tmp_path / "psam_p04.csv", index=False)
        data.iloc[16:].to_csv(tmp_path / "rest.csv", index=False)
        whole, part, rest = (tmp_path / f"{name}.csv" for name in ("psam_pusa", "psam_p04", "rest"))
        shared = data["SERIALNO"].iloc[:16].nunique()
        message = rf"^{shared} households .SERIALNO. are in more than one of the files \S+"
        with pytest.raises(ValueError, match=rf"{message}psam_pusa.csv, \S+psam_p04.csv: give"):
            read_acs_pums([whole, part])
        with pytest.raises(ValueError, match=rf"{message}psam_p04.csv, \S+psam_p04.csv: give"):
            read_acs_pums([part, rest, part])
        zipped = write_zip(tmp_path / "csv_pus.zip", a__csv=data, b__csv=data.iloc[:16])
        with pytest.raises(ValueError, match=rf"{message}csv_pus.zip, a.csv, \S+zip, b.csv: give"):
            read_acs_pums(zipped)
        assert read_acs_pums([part, rest]).equals(read_acs_pums(whole))

    def test_a_negative_weight_is_named_by_the_estimate(self, tmp_path):
        data = persons()
        data.loc[3, ["PWGTP", "POVPIP"]] = -5, "120"
        data.to_csv(tmp_path / "psam_p04.csv", index=False)
        records = read_acs_pums(tmp_path / "psam_p04.csv")
        roles = {"outcome": "poor", "area": "puma", "universe": "in_universe", "unit": "SERIALNO"}
        with pytest.raises(ValueError, match=r"column 'PWGTP': 1 negative weight, in 0400101 .1."):
            hajek(records, weight="PWGTP", spanning="bound", **roles)

    def test_rows_that_end_in_one_more_comma_are_refused(self, tmp_path):
        """Read by position, ages would be weights."""
        path = tmp_path / "psam_p04.csv"
        header, *rows = persons().to_csv(index=False).splitlines()
        path.write_text("\n".join([header, *(row + "," for row in rows)]))
        with pytest.raises(ValueError, match=r"^psam_p04.csv, line 2: 11 cells .* header of 10"):
            read_acs_pums(path)
        zipped = write_zip(tmp_path / "csv_p04.zip", psam_p04__csv=path.read_text())
        with pytest.raises(ValueError, match=r"^csv_p04.zip, psam_p04.csv, line 2: 11 cells"):
            read_acs_pums(zipped)

    @pytest.mark.parametrize("spelling", [str.lower, str.upper], ids=["2012-2016", "other years"])
    def test_replicate_weights_in_either_case(self, tmp_path, spelling):
        data = persons(replicates=80)
        weights = [f"PWGTP{k}" for k in range(1, 81)]
        path = tmp_path / "ss16pwa.csv"
        data.rename(columns={name: spelling(name) for name in weights}).to_csv(path, index=False)
        records = read_acs_pums(path, replicate_weights=True)
        np.testing.assert_array_equal(records[weights], data[weights])
        with pytest.raises(ValueError, match=r"no column 'PWGTP80'"):
            data.drop(columns="PWGTP80").to_csv(path, index=False)
            read_acs_pums(path, replicate_weights=True)

    def test_minus_one_is_outside_the_universe_of_poverty(self, tmp_path):
        ratios = ["50", "300", "-1", "-1"]
        path = tmp_path / "ss12pwa.csv"
        persons().iloc[:4].assign(POVPIP=ratios, PWGTP=10).to_csv(path, index=False)
        records = read_acs_pums(path)
        assert records["in_universe"].tolist() == [True, True, False, False]
        np.testing.assert_array_equal(records["POVPIP"], [50, 300, np.nan, np.nan])
        roles = {"outcome": "poor", "weight": "PWGTP", "area": "puma", "universe": "in_universe"}
        direct = hajek(records, unit="SERIALNO", **roles)
        # One of two; with those outside counted as poor it would be .75.
        assert direct["estimate"].item() == pytest.approx(0.5, abs=1e-11)

    @pytest.mark.parametrize("ratio", ["-2", "502", "1e9"])
    def test_a_code_of_poverty_that_is_no_percentage_is_counted_and_not_shown(
        self, tmp_path, ratio
    ):
        path = tmp_path / "a.csv"
        persons().assign(POVPIP=["120"] * 38 + [ratio] * 2).to_csv(path, index=False)
        with pytest.raises(ValueError, match=r"^a.csv: POVPIP of 2 records is no percentage"):
            read_acs_pums(path)

    def test_a_gzipped_file(self, tmp_path):
        persons().to_csv(tmp_path / "a.csv", index=False)
        persons().to_csv(tmp_path / "a.csv.gz", index=False)
        assert read_acs_pums(tmp_path / "a.csv.gz").equals(read_acs_pums(tmp_path / "a.csv"))

    def test_a_column_of_the_state_can_be_asked_for(self, tmp_path):
        path = tmp_path / "a.csv"
        persons("STATE").to_csv(path, index=False)
        records = read_acs_pums(path, columns=["STATE", "PUMA"])
        assert (records["STATE"] + records["PUMA"] == records["puma"]).all()

    def test_a_zip_without_a_table(self, tmp_path):
        path = write_zip(tmp_path / "docs.zip", README__pdf=b"%PDF")
        with pytest.raises(
            ValueError, match=r"docs.zip: no .csv file in this zip, which holds README.pdf"
        ):
            read_acs_pums(path)


class TestBrfss:
    def check(self, records):
        assert records["_STSTR"].tolist() == ["531011"] * 3 + ["531012"] * 3
        assert records["_PSU"].tolist() == [f"202300000{k}" for k in range(6)]
        assert set(records["_STATE"]) == {"53"}
        np.testing.assert_allclose(
            records["_LLCPWT"], [200.5, 300.25, 1 / 3, 400, 150, 350], rtol=1e-15
        )
        np.testing.assert_array_equal(records["smoker"], [1, 1, 0, 0, np.nan, np.nan])

    def test_the_transport_file(self, tmp_path):
        path = write_xport(tmp_path / "LLCP2023.XPT", respondents())
        records = read_brfss(path, state=53, columns=["PHYSHLTH"])
        self.check(records)
        np.testing.assert_array_equal(records["PHYSHLTH"], [88, 77, 99, 5, 30, np.nan])

    def test_the_zip_whose_member_ends_in_a_space(self, tmp_path):
        path = write_xport(tmp_path / "plain.xpt", respondents())
        zipped = tmp_path / "LLCP2023XPT.zip"
        with zipfile.ZipFile(zipped, "w") as archive:
            archive.write(path, "LLCP2023.XPT ")
        records = read_brfss(zipped, state="53")
        self.check(records)
        roles = {"outcome": "smoker", "weight": "_LLCPWT", "area": "_STSTR", "missing": "drop"}
        direct = hajek(records, **roles)
        assert direct["area"].values.tolist() == ["531011", "531012"]
        assert direct["n_dropped"].values.tolist() == [0, 2]

    def test_the_other_variable_of_smoking(self, tmp_path):
        data = respondents().drop(columns="_SMOKER3")
        path = write_xport(
            tmp_path / "a.XPT", data.assign(_RFSMOK3=[2, 2, 1, 1, 9, np.nan, 1, 1, 1])
        )
        self.check(read_brfss(path, state=53))

    def test_zeros_of_sas_are_zeros(self, tmp_path):
        """pandas reads SAS's zero as 16**-65: a record of weight 0 would count as one."""
        data = respondents().assign(PHYSHLTH=[0, 77, -0.0, 5, 1e-30, np.nan, 1, 2, 3])
        data.loc[1, "_LLCPWT"] = 0
        path = write_xport(tmp_path / "LLCP2023.XPT", data)
        records = read_brfss(path, state=53, columns=["PHYSHLTH"])
        np.testing.assert_allclose(
            records["PHYSHLTH"], [0, 77, 0, 5, 1e-30, np.nan], rtol=1e-15, atol=0
        )
        assert records.loc[1, "_LLCPWT"] == 0
        direct = hajek(records, outcome="smoker", weight="_LLCPWT", area="_STSTR", missing="drop")
        assert direct["n"].values.tolist() == [2, 1]

    @pytest.mark.parametrize("content", [b"", b"HEADER RECORD*******", b"\0" * 500])
    def test_no_transport_file_is_a_refusal_by_name(self, tmp_path, content):
        path = tmp_path / "LLCP2023.XPT"
        whole = write_xport(path, respondents()).read_bytes()
        for damaged in (content, whole[:700], whole[:240] + content.ljust(400) + whole[640:]):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"^LLCP2023\.XPT: not a SAS transport file") as no:
                read_brfss(path, state=53)
            assert no.value.__suppress_context__

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda d: d[d["_STATE"] != 53], "no records of state 53; the file holds 41"),
            (
                lambda d: d.drop(columns="_SMOKER3"),
                "not a file of the BRFSS, which has no column '_SMOKER3",
            ),
            (lambda d: d.drop(columns=["_PSU", "_STSTR"]), "no column '_STSTR' .*, '_PSU'"),
            (
                lambda d: d.rename(columns={"_LLCPWT": "_FINALWT"}),
                "a file of before 2011 .weight _FINALWT, no _LLCPWT.",
            ),
            (lambda d: d.assign(_SMOKER3=7), "6 codes of _SMOKER3 that are not in the code book"),
        ],
        ids=["other state", "outcome", "design", "old", "codes"],
    )
    def test_a_wrong_file_is_refused_and_described(self, tmp_path, change, message):
        path = write_xport(tmp_path / "LLCP.XPT", change(respondents()))
        with pytest.raises(ValueError, match=message):
            read_brfss(path, state=53)

    def test_no_transport_file_at_all(self, tmp_path):
        path = tmp_path / "LLCP2023.XPT"
        path.write_text("SEQNO,_STATE\n1,53\n")
        with pytest.raises(ValueError, match=r"LLCP2023\.XPT: not a SAS transport file"):
            read_brfss(path, state=53)


class TestDirectFromTable:
    TABLE = pd.DataFrame(
        {
            "name": ["b", "a", "c"],
            "p": [0.2, 0.1, np.nan],
            "se": [0.05, 0.02, np.nan],
            "var": [0.0025, 0.0004, np.nan],
            "share": [0.04, 0.01, np.nan],
        }
    )

    @pytest.mark.parametrize("as_frame", [pd.DataFrame, pl.from_pandas], ids=["pandas", "polars"])
    def test_variances_or_standard_errors_give_the_same(self, as_frame):
        table = as_frame(self.TABLE)
        by_se = direct_from_table(
            table, area="name", estimate="p", standard_error="se", max_share="share"
        )
        by_var = direct_from_table(
            table, area="name", estimate="p", variance="var", sensitivity="share"
        )
        assert by_se["area"].values.tolist() == ["a", "b", "c"]
        np.testing.assert_allclose(by_se["variance"], by_var["variance"], rtol=1e-14)
        np.testing.assert_allclose(by_se["estimate"], [0.1, 0.2, np.nan], rtol=0, atol=1e-12)
        np.testing.assert_allclose(by_se["sensitivity"], [0.01, 0.04, 0], rtol=0, atol=4e-12)
        assert (by_se["sensitivity"][:2] > [0.01, 0.04]).all()
        assert by_se.attrs["n_areas_without_sample"] == 1

    def test_a_share_is_one_of_the_range(self):
        table = self.TABLE.assign(p=20.0, var=4.0, share=0.03)
        direct = direct_from_table(
            table, area="name", estimate="p", variance="var", max_share="share", bounds=(0, 100)
        )
        np.testing.assert_allclose(direct["sensitivity"], 3.0, rtol=1e-9)

    @pytest.mark.parametrize(
        ("change", "options", "message"),
        [
            ({}, {"variance": None}, "exactly one of variance and standard_error"),
            ({}, {"standard_error": "se"}, "exactly one of variance and standard_error"),
            ({}, {"max_share": "share"}, "exactly one of sensitivity and max_share"),
            ({"p": [0.2, 7.125, np.nan]}, {}, "'p': outside the bounds in 1 areas, a"),
            ({"var": [0.1, 0.0, np.nan]}, {}, "'var': zero or negative in 1 areas, a"),
            ({"var": [0.1, np.nan, np.nan]}, {}, "'var': missing or infinite in 1 areas, a"),
            ({"share": [0.1, np.nan, np.nan]}, {}, "'share': missing, zero or negative in 1"),
            ({"share": [0.1, 2.0, np.nan]}, {}, "'share': larger than the bounds allow in 1"),
            ({"p": [0.2, np.nan, np.nan]}, {}, "'p': without an estimate but with a variance"),
            ({"name": ["a", "a", "c"]}, {}, "more than one area has the label 'a'"),
            ({"p": ["x", "y", "z"]}, {}, "column 'p' holds String, not numbers"),
            ({}, {"estimate": "q"}, "no column 'q'"),
        ],
    )
    def test_what_cannot_be_is_refused_by_area(self, change, options, message):
        call = {"area": "name", "estimate": "p", "variance": "var", "sensitivity": "share"}
        with pytest.raises(ValueError, match=message) as error:
            direct_from_table(self.TABLE.assign(**change), **(call | options))
        assert "7.1" not in str(error.value)


class TestSpanningUnits:
    """A unit in k areas costs at most what the largest of its parts does, made k times as large."""

    def test_the_raised_sensitivities_bound_the_price_of_every_unit(self):
        rng = np.random.default_rng(41)
        data = pd.DataFrame(
            {
                "area": rng.choice(list("abcdef"), 200),
                "person": rng.integers(0, 80, 200),
                "w": rng.lognormal(1, 1, 200),
                "y": rng.integers(0, 2, 200),
            }
        )
        roles = {"outcome": "y", "weight": "w", "area": "area", "unit": "person"}
        direct = hajek(data, spanning="bound", **roles)
        parts = data.groupby(["person", "area"])["w"].sum().unstack(fill_value=0.0)
        shares = parts / parts.sum()
        reach = shares.mul((parts > 0).sum(axis=1), axis=0).max()
        np.testing.assert_allclose(direct["sensitivity"], reach, rtol=0, atol=1e-11)
        assert direct.attrs["max_areas_of_a_unit"] == (parts > 0).sum(axis=1).max()
        assert direct.attrs["n_spanning_units"] == ((parts > 0).sum(axis=1) > 1).sum()
        # The exact price of each unit, the maximum over signs of d' D^-1 Sigma D^-1 d / 2, for
        # posteriors from no pooling to complete pooling.
        d, areas = direct["variance"].values, len(direct["area"])
        signs = 1 - 2 * (np.arange(2**areas)[:, None] >> np.arange(areas) & 1)
        for a in (1.0, 0.01, 1e-4, 0.0):
            g, w = d / (a + d), 1 / (a + d)
            sigma = np.diag(a * g) + np.outer(g, g) / w.sum()
            kernel = sigma / np.outer(d, d)
            stated = (direct["sensitivity"].values ** 2 * np.diag(kernel)).max() / 2
            for row in shares.to_numpy():
                moved = signs * row
                assert np.einsum("si,ij,sj->s", moved, kernel, moved).max() / 2 <= stated
