"""One survey on every engine: the same numbers, and only rows of areas on the driver."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from pymc_dp.survey import frames as survey_frames
from pymc_dp.survey.estimate import hajek

AREAS = 9

pytestmark = [
    # What narwhals and PySpark announce about their own future.
    pytest.mark.filterwarnings("ignore:Dask support is moving out:FutureWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def survey():
    """Records with strata, clusters, households, replicates and every kind of missing value."""
    rng = np.random.default_rng(21)
    size = 900
    cluster = rng.integers(0, 60, size)
    data = pd.DataFrame(
        {
            "state": np.where(cluster % 3 > 0, "04", "08"),
            "puma": [f"{k:05d}" for k in rng.integers(0, AREAS, size) // 2 * 100],
            "stratum": cluster % 5,
            "cluster": cluster,
            "home": rng.integers(0, 30, size),
            "person": rng.integers(0, 500, size),
            "w": rng.integers(1, 300, size) * (rng.random(size) > 0.1),
            "y": (rng.random(size) < 0.3).astype(float),
            "inside": rng.random(size) < 0.9,
            "in_stratum": 40 + cluster % 5,
            "in_area": 5000,
        }
    )
    data.loc[rng.random(size) < 0.05, "y"] = np.nan
    waves = 1 + rng.normal(0, 0.7, (size, 8))
    return data.join(pd.DataFrame(waves * data[["w"]].to_numpy()).add_prefix("rep"))


@pytest.fixture(scope="module")
def path(survey, tmp_path_factory):
    """The same records as a Parquet file of several row groups."""
    path = tmp_path_factory.mktemp("engines") / "survey.parquet"
    pyarrow.parquet.write_table(
        pa.Table.from_pandas(survey, preserve_index=False), path, row_group_size=250
    )
    return path


def duckdb_relation(path):
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    return duckdb.read_parquet(str(path))


def dask_frame(path):
    dask = pytest.importorskip("dask.dataframe", reason="Dask is not installed")
    return dask.from_pandas(pd.read_parquet(path), npartitions=4)


@pytest.fixture(scope="session")
def spark():
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    import os
    import shutil
    import sys

    if shutil.which("java") is None:
        pytest.skip("PySpark needs Java")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("survey")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


ENGINES = {
    "pandas nullable": lambda path: pd.read_parquet(path, dtype_backend="numpy_nullable"),
    "pandas arrow": lambda path: pd.read_parquet(path, dtype_backend="pyarrow"),
    "polars": pl.read_parquet,
    "polars from a file": pl.scan_parquet,
    "pyarrow": pyarrow.parquet.read_table,
    "duckdb": duckdb_relation,
    "dask": dask_frame,
}


@pytest.fixture(params=[*ENGINES, "spark"])
def read(request):
    """What reads a Parquet file on an engine."""
    if request.param == "spark":
        session = request.getfixturevalue("spark")
        return lambda path: session.read.parquet(str(path))
    return ENGINES[request.param]


AREA = {"outcome": "y", "weight": "w", "area": ["state", "puma"], "missing": "drop"}
REPLICATES = {"variance": "sdr", "replicate_weights": "rep"}
CALLS = {
    "records": {},
    "universe": {"universe": "inside"},
    "households": {"unit": ["state", "puma", "home"]},
    "persons in several areas": {"unit": "person", "spanning": "bound"},
    "kish": {"variance": "kish", "rate": 0.2},
    "clusters in strata": {"strata": "stratum", "cluster": "cluster"},
    "corrected for the population": {"fpc": "in_area"},
    "clusters of a population": {"strata": "stratum", "cluster": "cluster", "fpc": "in_stratum"},
    "strata of households": {"strata": "state", "unit": ["state", "puma", "home"]},
    "replicates": REPLICATES,
}


@pytest.fixture(scope="module")
def expected(survey):
    return {name: hajek(survey, **AREA, **options) for name, options in CALLS.items()}


def assert_same(direct, expected):
    assert direct.attrs == expected.attrs
    assert direct.sizes == expected.sizes
    for name in expected.coords:
        assert direct[name].values.tolist() == expected[name].values.tolist()
    for name in expected.data_vars:
        np.testing.assert_allclose(
            direct[name], expected[name], rtol=1e-12, atol=1e-15, err_msg=name
        )


@pytest.mark.parametrize("call", CALLS)
def test_every_engine_gives_the_same_from_rows_of_areas(
    read, call, path, survey, expected, monkeypatch
):
    fetched = []
    original = survey_frames.on_driver

    def counted(frame):
        rows = original(frame)
        fetched.append(len(rows))
        return rows

    monkeypatch.setattr(survey_frames, "on_driver", counted)
    options = CALLS[call]
    assert_same(hajek(read(path), **AREA, **options), expected[call])
    # A design has a row for each area and stratum: clusters and records stay where they are.
    keys = {*AREA["area"], options.get("strata", "state")}
    assert 0 < max(fetched) <= len(survey[list(keys)].drop_duplicates())


def test_faults_are_found_and_named_on_every_engine(read, survey, tmp_path):
    faulty = survey.copy()
    faulty["w"] = faulty["w"].astype(float)
    rows = faulty.index[faulty["puma"] == "00400"]
    faulty.loc[rows[0], "w"] = -3.0
    faulty.loc[rows[1], "w"] = np.inf
    faulty.loc[rows[2], "w"] = np.nan
    faulty.loc[rows[3], "y"] = 9.0
    faulty.to_parquet(tmp_path / "faulty.parquet")
    with pytest.raises(ValueError) as error:
        hajek(read(tmp_path / "faulty.parquet"), **(AREA | {"missing": "fail"}))
    message = str(error.value)
    missing = survey["y"].isna().sum() - (survey.loc[rows[3], "y"] != survey.loc[rows[3], "y"])
    for part in (
        "column 'w': 1 negative weight, in 0",
        "column 'w': 1 infinite weight, in 0",
        "column 'y': 1 outcome outside 0..1, in 0",
        "column 'w': 1 missing weight, in 0",
        f"column 'y': {missing} missing outcomes, in 0",
    ):
        assert part in message


def test_an_empty_file_is_refused_on_every_engine(read, survey, tmp_path):
    survey.iloc[:0].to_parquet(tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="hold no records"):
        hajek(read(tmp_path / "empty.parquet"), **AREA)
