"""What the package puts out, written to a folder: to compare before and after a change.

For a change that should change nothing, such as moving modules.

    python outputs.py write FOLDER
    python outputs.py compare FOLDER_A FOLDER_B

``write`` runs the package through its public names alone: figures in hexadecimal, labels,
attributes, records, files, pages, pictures, what is printed, what is refused, signatures and
documentation. Noise, coins and the clock are replaced outside the package (OpenDP's own map still
prices the noise), so that two runs on one machine agree bit for bit. ``compare`` prints every
difference and exits with 1 if there is any. HTML is compared by elements, attributes and text; a
value whose line starts with "~", or that is the noise_sd of a record (the noise of
private_sigma_u), to 1e-9.
"""
# ruff: noqa: D102, D103, D105

from __future__ import annotations

import contextlib
import datetime
import difflib
import hashlib
import html.parser
import inspect
import io
import math
import os
import re
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile
import zlib
from importlib.metadata import version
from pathlib import Path

PYMC_5 = version("pymc").startswith("5.")
if PYMC_5:
    os.environ["PYTENSOR_FLAGS"] = os.environ.get("PYTENSOR_FLAGS", "") + ",mode=NUMBA,cxx="
os.environ |= {"COLUMNS": "100", "MPLBACKEND": "Agg", "TERM": "dumb", "PYTHONWARNINGS": "ignore"}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
os.environ |= dict.fromkeys(THREADS, "1")  # sums in another order differ in the last digits
for unwanted in ("FORCE_COLOR", "NO_COLOR", "PYTHONBREAKPOINT"):
    os.environ.pop(unwanted, None)

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import xarray as xr  # noqa: E402

HERE = Path(__file__).resolve().parent
CLOCK = datetime.datetime
MANY = 3_000  # values; of more, a digest and the first few are written
SECTIONS = []


def section(function):
    SECTIONS.append(function)
    return function


# No chance, no clock


class Chance:
    """The one source of noise: starts anew in every section."""

    def __init__(self):
        self.noises = 0
        self.start("")

    def start(self, name):
        self.rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))

    def below(self, size):
        return int(self.rng.integers(size))


CHANCE = Chance()


class Measurement:
    """OpenDP's measurement: its own map and checks, but noise on its lattice from the generator."""

    def __init__(self, real, scale, k):
        self._real, self._scale, self._k = real, scale, k

    def __getattr__(self, name):
        return getattr(self._real, name)

    def __call__(self, values):
        size = len(self._real(values))  # refuses what it refuses; its noise is thrown away
        steps = CHANCE.rng.normal(size=size) * math.ldexp(self._scale, -self._k)
        CHANCE.noises += size
        exact = (round(math.ldexp(float(v), -self._k)) for v in values)
        return [math.ldexp(v + round(s), self._k) for v, s in zip(exact, steps, strict=True)]


def replace_chance_and_clock():
    import opendp.measurements as measurements

    make, generator = measurements.make_gaussian, np.random.default_rng

    def make_gaussian(input_domain, input_metric, scale, k=None, **options):
        real = make(input_domain, input_metric, scale=scale, k=k, **options)
        return Measurement(real, scale, -1074 if k is None else k)

    def default_rng(seed=None):
        return generator(CHANCE.below(2**32) if seed is None else seed)

    class Kind(type):
        def __instancecheck__(cls, thing):
            return isinstance(thing, CLOCK)

    class Frozen(CLOCK, metaclass=Kind):
        @classmethod
        def now(cls, tz=None):
            return CLOCK(2001, 2, 3, 4, 5, 6, 789, tz)

    measurements.make_gaussian, np.random.default_rng = make_gaussian, default_rng
    secrets.randbelow = CHANCE.below
    datetime.datetime = Frozen
    os.cpu_count = lambda: 1  # coordinates shared among threads would take noise in any order


# Writing


def exact(value):
    """A value as text that loses nothing."""
    if isinstance(value, (float, np.floating)):
        return f"{float(value).hex()} {value!s}"
    if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0:
        return f"{np.asarray(value)[()]!s}"
    return repr(value)


def table(array, mark="  "):
    array = np.asarray(array)
    values = array.ravel()
    if values.size > MANY:
        raw = "\n".join(map(repr, values)).encode() if array.dtype == object else array.tobytes()
        yield f"  sha256 {hashlib.sha256(raw).hexdigest()}"
        values = values[:10]
    yield from (mark + exact(value) for value in values)


def told(name, value, loose=()):
    """Lines that tell all of a value."""
    if isinstance(value, xr.Dataset):
        yield f"{name}: Dataset {dict(value.sizes)}"
        for kind, part in (("coords", value.coords), ("data", value.data_vars)):
            for key in part:
                yield from told(f"{name}.{kind}[{key}]", part[key].variable, key in loose)
        yield from told(f"{name}.attrs", value.attrs)
    elif isinstance(value, xr.DataArray):
        yield f"{name}: DataArray {value.name!r}"
        for key in value.coords:
            yield from told(f"{name}.coords[{key}]", value.coords[key].variable)
        yield from told(name, value.variable)
    elif isinstance(value, xr.Variable):
        yield f"{name}: {value.dims} {value.shape} {value.dtype}"
        yield from table(value.values, "~ " if loose else "  ")
        yield from told(f"{name}.attrs", value.attrs)
    elif isinstance(value, pd.DataFrame):
        yield f"{name}: DataFrame {value.shape}"
        yield from told(f"{name}.index", value.index)
        for position, key in enumerate(value.columns):
            yield f"{name}[{key!r}]: {value.dtypes.iloc[position]}"
            yield from table(value.iloc[:, position].to_numpy())
        yield from told(f"{name}.attrs", value.attrs)
    elif isinstance(value, (pd.Index, pd.Series)):
        yield f"{name}: {type(value).__name__} {value.name!r} {value.shape} {value.dtype}"
        yield from told(f"{name}.index", value.index) if isinstance(value, pd.Series) else ()
        yield from table(value.to_numpy())
    elif isinstance(value, np.ndarray) and value.ndim:
        yield f"{name}: {value.shape} {value.dtype}"
        yield from table(value)
    elif isinstance(value, dict):
        yield f"{name}: {type(value).__name__} {list(value)}"
        for key in value:
            yield from told(f"{name}[{key!r}]", value[key])
    elif isinstance(value, (list, tuple)):
        yield f"{name}: {type(value).__name__} {len(value)}"
        for position, one in enumerate(value):
            yield from told(f"{name}[{position}]", one)
    else:
        yield f"{name}: {type(value).__name__} {exact(value)}"


class Writer:
    """Writes what a section puts into files of one folder."""

    def __init__(self, folder, masks):
        self.folder, self.masks, self.refused = folder, masks, []

    def text(self, name, text):
        for found, instead in self.masks.items():
            text = text.replace(found, instead)
        text = re.sub(r"\bat 0x[0-9a-f]{6,}", "at <address>", text)
        path = self.folder / name
        if path.exists():
            raise AssertionError(f"{path} is written twice")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")

    def value(self, name, value, loose=()):
        """A value, and how it looks."""
        self.text(f"{name}.txt", "\n".join(told(name, value, loose)) + "\n")
        if not isinstance(value, (dict, list, tuple, float)):
            self.text(f"{name}.print.txt", f"{value!r}\n\n{value}\n")
        if type(value).__module__.startswith("pymc_dp") and hasattr(value, "_repr_html_"):
            self.text(f"{name}.html", value._repr_html_())

    def container(self, name, container):
        """What a draw is attached to."""
        names = container.groups() if callable(container.groups) else container.children
        found = {}
        for group in names:
            one = container[group]
            found[str(group)] = one.to_dataset() if hasattr(one, "to_dataset") else one
        self.text(f"{name}.txt", "\n".join(told(type(container).__name__, found)) + "\n")

    def release(self, name, release, draw=True, **options):
        """All that a release says before the draw and, if there is one, after it."""
        self.value(f"{name}/guarantee", release.guarantee)
        self.value(f"{name}/release", release)
        self.value(f"{name}/facts", [release.claim, release.mechanism])
        if release.report is not None:
            self.value(f"{name}/report", release.report)
        with self.or_refused(f"{name}/propagation"):
            self.value(f"{name}/propagation", release.propagation())
        with self.or_refused(f"{name}/simulate"):
            self.value(f"{name}/simulate", release.simulate(2, random_seed=1))
        self.statement(f"{name}/planned", release)
        if draw:
            drawn = release.draw(**options)
            self.container(f"{name}/drawn", drawn)
            self.value(f"{name}/released", release.released)
            self.value(f"{name}/release-drawn", release)
            self.statement(f"{name}/drawn", release)
            self.public(f"{name}/public", drawn)
            return drawn
        return None

    def statement(self, name, release):
        page = Path(f"{secrets.token_hex(8)}.html")
        release.statement(page, conditional=True)
        self.text(f"{name}-statement.html", page.read_text(encoding="utf-8"))

    def public(self, name, drawn, suffixes=(".nc",), conditional=True):
        import pymc_dp as pdp

        for suffix in suffixes:
            path = Path(secrets.token_hex(8) + suffix)
            pdp.write_public(drawn, path, conditional=conditional)
            self.file(f"{name}{suffix}", path)
            self.container(f"{name}{suffix}.read", pdp.read_public(path))

    def file(self, name, path):
        """What is in a file, apart from where in it."""
        if path.is_dir():
            for inner in sorted(p for p in path.rglob("*") if p.is_file()):
                self.file(f"{name}/{inner.relative_to(path)}", inner)
        elif path.suffix == ".nc":
            self.text(f"{name}.txt", "\n".join(hdf5(path)) + "\n")
        elif path.suffix == ".ledger":
            with contextlib.closing(sqlite3.connect(path)) as connection:
                pragmas = [connection.execute(f"PRAGMA {p}").fetchall() for p in PRAGMAS]
                self.text(f"{name}.txt", "\n".join([*connection.iterdump(), str(pragmas)]) + "\n")
        elif path.suffix == ".png":
            from matplotlib.image import imread

            self.text(f"{name}.txt", "\n".join(told("pixels", imread(path))) + "\n")
        else:
            raw = path.read_bytes()
            try:
                self.text(name if path.suffix == ".html" else f"{name}.txt", raw.decode("utf-8"))
            except UnicodeDecodeError:
                self.text(f"{name}.txt", f"sha256 {hashlib.sha256(raw).hexdigest()}\n")

    def picture(self, name, plot, *arguments, **options):
        """A picture: its texts and its pixels."""
        import matplotlib.pyplot as plt
        from matplotlib.text import Text

        plot(*arguments, **options)
        for number in plt.get_fignums():
            figure = plt.figure(number)
            figure.canvas.draw()
            texts = [text.get_text() for text in figure.findobj(Text) if text.get_text()]
            pixels = np.asarray(figure.canvas.buffer_rgba())
            self.value(f"pictures/{name}-{number}", [texts, pixels])
        plt.close("all")

    @contextlib.contextmanager
    def or_refused(self, name):
        """Note the error, if there is one."""
        try:
            yield
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__[:-3]]
            self.refused.append(f"{name}\n  {' < '.join(kinds)}: {error}\n")

    def refuse(self, name, function, *arguments, **options):
        before = len(self.refused)
        with self.or_refused(name):
            function(*arguments, **options)
        if len(self.refused) == before:
            self.refused.append(f"{name}\n  NOT REFUSED\n")

    def command(self, name, *arguments, files=()):
        """A command line: status, what is said, and the files that it leaves."""
        from pymc_dp.cli import main

        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main([str(a) for a in arguments])
            except SystemExit as ended:
                status = f"SystemExit {ended.code}"
        said = [f"$ pymc-dp {' '.join(map(str, arguments))}", f"status {status}", "- stdout"]
        lines = [*said, out.getvalue(), "- stderr", err.getvalue()]
        self.text(f"{name}/said.txt", "\n".join(lines))
        for path in map(Path, files):
            self.file(f"{name}/{path.name}", path)


PRAGMAS = ("application_id", "user_version", "journal_mode", "page_size")


def hdf5(path):
    """All that an HDF5 file holds, without addresses."""
    import h5py

    def plain(value, file):
        if isinstance(value, h5py.Reference):
            return file[value].name
        if isinstance(value, np.ndarray) and value.dtype == object:
            return [plain(v, file) for v in value.ravel()]
        if isinstance(value, np.ndarray) and value.dtype.names:
            return [[plain(part, file) for part in row] for row in value.ravel()]
        return value

    with h5py.File(path, "r") as file:
        places = [file]
        file.visititems(lambda _, place: places.append(place))
        for place in places:
            yield f"{place.name}: {type(place).__name__}"
            if isinstance(place, h5py.Dataset):
                filters = (place.chunks, place.compression, place.shuffle, place.fletcher32)
                yield f"  {place.shape} {place.maxshape} {place.dtype} {filters} {place.fillvalue}"
                yield from table(place[()]) if place.shape is not None else ()
            for key in place.attrs:
                yield from told(f"  {place.name}@{key}", plain(place.attrs[key], file))


# What is put out


DECLARED = {
    "weights": "design weights of the simulated survey",
    "sampling_variance": "weights, and a national smoking rate of earlier years",
    "sigma_u": "the state's previous survey",
    "covariates": "census and labour statistics",
    "universe": "the list of households asked and interviewed",
}
SURVEY = {"outcome": "smoker", "weight": "weight", "area": "area"}
HOUSEHOLD = SURVEY | {"unit": "household"}
PUBLIC = {"rate": 0.15, "design_factor": 1.2}
KISH = {"variance": "kish", **PUBLIC}


def shared(name):
    """A file of the shared folder."""
    beside = [folder / "shared" for folder in (HERE, *HERE.parents[:3], Path.cwd())]
    for place in [os.environ.get("PYMC_DP_SHARED"), *beside]:
        if place and (Path(place) / "data" / name).is_file():
            return Path(place) / "data" / name
    raise FileNotFoundError("the shared folder is not here: set PYMC_DP_SHARED")


def state(areas=12, respondents=2_000):
    """A simulated survey: records, covariates."""
    import pymc_dp as pdp

    records = pdp.datasets.simulate_state_survey(areas=areas, respondents=respondents)
    return records, pdp.datasets.state_covariates(areas)


def small():
    """Direct estimates of a small survey, with public sampling variances."""
    import pymc_dp as pdp

    return pdp.hajek(state()[0], **HOUSEHOLD, **KISH)


def without(keys, given=DECLARED):
    return {key: words for key, words in given.items() if key not in keys}


def fit(**groups):
    """A made-up fit, as PyMC would return it."""
    if PYMC_5:
        import arviz as az

        container = az.InferenceData()
    else:
        container = xr.DataTree()
    for name, data in groups.items():
        container[name] = data
    return container


def signature(thing):
    try:
        return re.sub(r"\s+", " ", str(inspect.signature(thing)))
    except (ValueError, TypeError):
        return "no signature"


@section
def interface(put):
    import pymc_dp as pdp
    from pymc_dp import audit, cli, datasets, privacy

    modules = {"audit": audit, "datasets": datasets, "privacy": privacy}
    # Inner modules that were loaded are no public names; they are seen in a new interpreter only.
    script = "import pymc_dp; print([n for n in dir(pymc_dp) if not n.startswith('_')])"
    heavy = "('numpy', 'pandas', 'xarray', 'pymc', 'opendp', 'matplotlib', 'narwhals', 'rich')"
    loaded = f"import sys; print([m for m in {heavy} if m in sys.modules])"
    for name, arguments in {
        "dir": ["-c", script],
        "loaded by the package": ["-c", f"import pymc_dp; {loaded}"],
        "loaded by the command line": ["-c", f"import pymc_dp.cli; {loaded}"],
        "python -m": ["-m", "pymc_dp", "--version"],
        "python -m, wrong": ["-m", "pymc_dp", "demo", "--wrong"],
    }.items():
        run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        put.text(f"{name}.txt", f"{run.returncode}\n{run.stdout}\n{run.stderr}")
    put.value("all", {"pymc_dp": pdp.__all__} | {n: modules[n].__all__ for n in MODULES_WITH_ALL})
    names = {name: getattr(pdp, name) for name in pdp.__all__ if name not in ("datasets",)}
    names |= {f"{m}.{name}": getattr(modules[m], name) for m in MODULES_WITH_ALL
              for name in modules[m].__all__}  # fmt: skip
    names |= {f"privacy.{name}": getattr(privacy, name) for name in PRIVACY}
    names |= {"cli.main": cli.main, "pymc_dp": pdp, **modules}
    for name, thing in names.items():
        lines = [name + (signature(thing) if callable(thing) else ""), inspect.getdoc(thing) or ""]
        if inspect.isclass(thing):
            lines.insert(1, f"bases {[base.__name__ for base in thing.__mro__]}")
            for key, member in sorted(vars(thing).items()):
                if not key.startswith("_") and (callable(member) or isinstance(member, property)):
                    shown = signature(member) if callable(member) else " (property)"
                    lines += [f"\n.{key}{shown}", inspect.getdoc(member) or ""]
        put.text(f"doc/{name}.txt", "\n".join(lines) + "\n")
    put.value("version", {"pymc_dp": pdp.__version__} | {n: version(n) for n in LIBRARIES})


MODULES_WITH_ALL = ("audit", "datasets")
PRIVACY = ("rdp", "mu", "advantage", "epsilon", "delta", "epsilon_zcdp", "lattice_epsilon")
LIBRARIES = ("pymc", "opendp", "numpy", "pandas", "xarray", "arviz", "matplotlib", "rich")


@section
def prices(put):
    import pymc_dp as pdp
    from pymc_dp import privacy

    rho = np.array([0.0, 1e-12, 1e-3, 0.1, 1.0, 7.5, 80.0, np.inf])
    small_delta = np.array([1e-10, 1e-6, 1e-2])
    put.value("mu", pdp.mu(rho))
    put.value("advantage", pdp.advantage(rho))
    put.value("rdp", pdp.rdp(rho[:, None], [1.5, 2.0, 8.0, 64.0]))
    put.value("epsilon", pdp.epsilon(rho[:, None], small_delta))
    put.value("delta", pdp.delta(rho[:, None], [0.0, 0.5, 2.0, 30.0]))
    put.value("epsilon_zcdp", pdp.epsilon_zcdp(rho[:, None], small_delta))
    lattice = privacy.lattice_epsilon(rho[:-1], 1e-6, spacing=2.0**-50, coordinates=100)
    put.value("lattice_epsilon", lattice)
    put.value("scalars", [pdp.epsilon(0.1, 1e-6), pdp.mu(0.5), pdp.delta(0.1, 1.0)])
    put.value("many", pdp.epsilon(np.geomspace(1e-4, 10, 5_000), 1e-6))
    put.refuse("epsilon, delta 2", pdp.epsilon, 0.1, 2.0)
    put.refuse("epsilon, negative rho", pdp.epsilon, -0.1, 1e-6)
    put.refuse("rdp, order 1", pdp.rdp, 0.1, 1.0)


@section
def datasets(put):
    from pymc_dp import datasets as data
    from pymc_dp import hajek

    put.value("state", data.simulate_state_survey())
    put.value("state-small", data.simulate_state_survey(areas=3, respondents=200, random_seed=5))
    put.value("covariates", data.state_covariates())
    put.value("prevalence", data.state_prevalence())
    put.value("acs", data.simulate_acs(areas=4, persons=4_000))
    rng = np.random.default_rng(31)
    size = 40
    persons = pd.DataFrame({
        "RT": "P",
        "SERIALNO": [f"2023HU{k // 2:07d}" for k in range(size)],
        "PUMA": np.where(np.arange(size) < 20, "00101", "23301"),
        "STATE": np.where(np.arange(size) % 20 < 10, "04", "53"),
        "PWGTP": rng.integers(1, 200, size),
        "AGEP": rng.integers(0, 90, size),
        "POVPIP": [str(k) if k % 7 else "" for k in rng.integers(0, 501, size)],
    } | {f"PWGTP{k}": rng.integers(-50, 250, size) for k in range(1, 81)})  # fmt: skip
    with zipfile.ZipFile("csv_pus.zip", "w") as archive:
        archive.writestr("psam_pusa.csv", persons.to_csv(index=False))
    put.value("read-acs", data.read_acs_pums("csv_pus.zip"))
    poor = data.read_acs_pums("csv_pus.zip").dropna(subset="POVPIP")
    poor["poor"] = poor["POVPIP"] < 100  # a warning: the unit is not said
    put.value("read-acs-direct", hajek(poor, outcome="poor", weight="PWGTP", area="puma"))
    options = {"state": "wa", "columns": ["AGEP"], "replicate_weights": True}
    put.value("read-acs-washington", data.read_acs_pums("csv_pus.zip", **options))
    Path("nothing.XPT").write_text("nothing")
    put.refuse("read_brfss, no such file kind", data.read_brfss, "nothing.XPT", state="wa")
    put.refuse("read_acs_pums, no such state", data.read_acs_pums, "csv_pus.zip", state="ca")
    put.refuse("read_acs_pums, no state", data.read_acs_pums, "csv_pus.zip", state="zz")
    put.refuse("fetch_acs_pums, year", data.fetch_acs_pums, "wa", year=1901)
    put.refuse("fetch_brfss, year", data.fetch_brfss, year=1901)
    put.refuse("simulate_state_survey, few", data.simulate_state_survey, areas=1)


@section
def survey(put):
    import polars as pl

    import pymc_dp as pdp

    records, covariates = state()
    rng = np.random.default_rng(4)
    records["county"] = records["area"].str[-1]
    records["stratum"] = records["area"].str[1:].astype(int) % 3
    records["cluster"] = records["household"].str[-1]
    records["population"] = 5_000
    records["asked"] = rng.random(len(records)) < 0.9
    made = {f"rep{k}": records["weight"] * rng.uniform(0.5, 1.5, len(records)) for k in range(1, 9)}
    records = records.assign(**made)
    design = {"strata": "stratum", "cluster": "cluster"}
    for name, options in {
        "linearized": {},
        "kish": KISH,
        "household": {"unit": "household"},
        "two columns": {"area": ["county", "area"], "unit": ["area", "household"]},
        "design": design,
        "design, fpc": design | {"fpc": "population", "singleton": "adjust"},
        "universe": {"universe": "asked"},
        "spanning": {"unit": "cluster", "spanning": "bound"},
        "bounds": {"bounds": (-1, 2)},
        "sdr": {"replicate_weights": "rep", "variance": "sdr"},
        "fay": {"replicate_weights": "rep", "variance": "fay", "fay_rho": 0.5},
        "jkn": {"replicate_weights": "rep", "variance": "jkn", "replicate_scale": [0.5] * 8,
                "replicate_center": "mean"},
    }.items():  # fmt: skip
        put.value(f"hajek/{name}", pdp.hajek(records, **SURVEY | options))
    holes = records.copy()
    holes.loc[[3, 30], "smoker"], holes.loc[8, "weight"] = np.nan, np.nan
    put.value("hajek/missing", pdp.hajek(holes, **SURVEY, missing="drop"))
    put.value("hajek/polars", pdp.hajek(pl.from_pandas(records), **SURVEY))

    places = {"weight": "weight", "area": "area", "unit": "household"}
    weights = pdp.weight_table(records, **places, **PUBLIC)
    put.value("weight_table", weights)
    pairs = {a: f"pair {(int(a[1:]) + 1) // 2:02d}" for a in weights["area"].values}
    put.value("pool", pdp.pool(weights, pairs))
    model = {"sigma_u": 0.03, "formula": "~ college", "covariates": covariates}
    trimmed, effect = pdp.trim_weights(records, **places, **PUBLIC, max_ratio=3, **model)
    put.value("trimmed", trimmed["weight"])
    put.value("trim-effect", effect)
    put.value("trim-cap", pdp.trim_weights(records, **places, **PUBLIC, cap=500)[1])
    columns = {"p": [0.12, 0.31, np.nan], "se": [0.02, 0.05, np.nan], "share": [0.01, 0.04, 0]}
    frame = pd.DataFrame(columns, index=["B", "A", "C"])
    given = {"estimate": "p", "standard_error": "se", "max_share": "share", "unit": "person"}
    put.value("direct_from_table", pdp.direct_from_table(frame, **given))

    for name, (data, options) in {
        "no such column": (records, {"outcome": "drinker"}),
        "weight missing": (holes.assign(smoker=0), {}),
        "weight negative": (records.assign(weight=-records["weight"]), {}),
        "outcome missing": (holes.assign(weight=1.0), {}),
        "outcome outside": (records.assign(smoker=3 * records["smoker"]), {}),
        "outcome is text": (records.assign(smoker="yes"), {}),
        "area blank": (records.assign(area=" "), {}),
        "no records": (records.iloc[:0], {}),
        "unit in several areas": (records, {"unit": "cluster"}),
        "kish without a rate": (records, {"variance": "kish"}),
        "bounds without range": (records, {"bounds": (1, 1)}),
        "no such method": (records, {"variance": "guess"}),
        "lonely stratum": (records, {"strata": "household", "cluster": "cluster"}),
    }.items():
        put.refuse(f"hajek, {name}", pdp.hajek, data, **SURVEY | options)
    put.refuse("direct_from_table, both", pdp.direct_from_table, frame, **given, variance="se")
    put.refuse("trim_weights, neither", pdp.trim_weights, records, **places, **PUBLIC)


@section
def budget(put):
    import pymc_dp as pdp

    records, covariates = state()
    model = {"formula": "~ college + unemployment", "covariates": covariates, "sigma_u": 0.03}
    places = {"weight": "weight", "area": "area", "unit": "household"}
    areas = pdp.weight_table(records, **places, **PUBLIC)
    raw = pdp.plan(areas, **model, assumptions=DECLARED)
    others = {
        "as it is": raw,
        "smaller sigma_u": pdp.plan(areas, **model | {"sigma_u": 0.02}),
        "larger variances": pdp.plan(areas, **model, variance_factor=1.5),
        "independent": pdp.plan(areas, **model, mechanism="independent"),
        "target": pdp.plan(areas, **model, epsilon=1.0, delta=1e-6, method="noise"),
    }
    for name, one in others.items():
        put.value(f"plan/{name}", one)
    put.value("compare_plans", pdp.compare_plans(others))
    planned = pdp.planned_release(areas, **model, assumptions=DECLARED)
    put.release("planned", planned, draw=False)
    for rho in (0.5, 0.1, 0.01):
        answer = pdp.recommend(planned, rho=rho)
        put.value(f"recommend/{rho}", answer)
        put.value(f"recommend/{rho}-parts", [answer.best, answer.sentence, answer.table])
    put.value("recommend/epsilon", pdp.recommend(planned, epsilon=1.0, delta=1e-6))
    drivers = pdp.guarantee_drivers(areas, raw)
    put.value("guarantee_drivers", drivers)
    put.value("record_guarantee", pdp.record_guarantee(records, raw, **places))
    lighter = pdp.trim_weights(records, **places, **PUBLIC, max_ratio=3)[0]
    lighter = pdp.planned_release(pdp.weight_table(lighter, **places, **PUBLIC), **model)
    curves = pdp.frontier(planned, np.geomspace(0.01, 0.5, 4), trimmed={"trimmed": lighter})
    put.value("frontier", curves)
    put.picture("drivers", pdp.plot_drivers, drivers)
    put.picture("frontier", pdp.plot_frontier, curves, rho=0.1)
    put.refuse("draw of a plan", planned.draw)
    put.refuse("calibrate, no target", planned.calibrate)
    put.refuse("calibrate, no such method", planned.calibrate, rho=0.1, method="guess")
    put.refuse("plan, negative sigma_u", pdp.plan, areas, sigma_u=-0.1)
    put.refuse("pool, areas left", pdp.pool, areas, {"R01": "x"})


@section
def releases(put):
    """Fay-Herriot models: mechanisms, calibration, claims, ledgers."""
    import pymc as pm

    import pymc_dp as pdp

    direct, covariates = small(), state()[1]
    moved = direct["sensitivity"]
    model = pdp.fay_herriot(direct, "~ college", covariates, sigma_u=0.03)
    put.text("model.txt", f"{model}\n{sorted(model.named_vars)}\n{model.coords}\n")
    ledger = pdp.PrivacyLedger(Path("a.ledger"), 5.0, conditional=True, create=True)
    for mechanism in ("joint", "independent"):
        options = {"mechanism": mechanism, "assumptions": DECLARED}
        release = pdp.PrivateRelease(model, moved, **options)
        for method in ("temper", "noise", "scale"):
            with put.or_refused(f"{mechanism} {method}"):
                cheaper = release.calibrate(rho=0.05, method=method)
                put.release(f"{mechanism}-{method}", cheaper, ledger=ledger)
        put.release(f"{mechanism}-epsilon", release.calibrate(epsilon=1.0, delta=1e-6))
        drawn = put.release(mechanism, release, draws=2)
        put.public(f"{mechanism}/stores", drawn, (".zarr",), conditional=False)
        put.refuse(f"{mechanism}, second draw", release.draw)
        put.refuse(f"{mechanism}, calibrated after the draw", release.calibrate, rho=0.1)
    put.picture("release", pdp.plot_release, drawn)
    put.picture("guarantee", pdp.plot_guarantee, release.guarantee, direct["n"])
    put.picture("rdp", pdp.plot_rdp, release.guarantee)
    pdp.write_statement(drawn, Path("written.html"))
    put.file("written.html", Path("written.html"))

    for missing in ("weights", "sampling_variance", "sigma_u", "covariates", "universe"):
        given = without([missing])
        put.release(f"without {missing}", pdp.PrivateRelease(model, moved, assumptions=given))
    conditional = pdp.PrivateRelease(pdp.fay_herriot(direct, sigma_u=0.03), 0.02)
    drawn = put.release("nothing declared", conditional)
    put.refuse("conditional file not asked for", pdp.write_public, drawn, "refused.nc")
    put.refuse("conditional page not asked for", pdp.write_statement, drawn, "refused.html")
    put.refuse("file of another kind", pdp.write_public, drawn, "refused.txt", conditional=True)
    put.refuse("no file", pdp.read_public, "nothing.nc")

    rng = np.random.default_rng(8)
    dims = ("chain", "draw")
    sigma = xr.Dataset({"sigma_u": (dims, rng.uniform(0.02, 0.05, (2, 500)))})
    free = pdp.fay_herriot(direct, sigma_u=pm.HalfNormal.dist(0.1))
    given = without(["sigma_u"])
    plugged = pdp.PrivateRelease(free, moved, idata=fit(posterior=sigma), assumptions=given)
    put.release("plugged in", plugged)
    stuck = fit(posterior=xr.Dataset({"sigma_u": (dims, np.cumsum(np.ones((2, 500)), 1) / 500)}))
    put.refuse("not converged", pdp.PrivateRelease, free, moved, idata=stuck)
    put.refuse("sigma_u free", pdp.PrivateRelease, free, moved)
    put.release("held", pdp.PrivateRelease(free, moved, fixed={"sigma_u": 0.03}), draw=False)

    put.refuse("unknown assumption", pdp.PrivateRelease, model, moved, assumptions={"luck": "x"})
    put.refuse("blank source", pdp.PrivateRelease, model, moved, assumptions={"weights": " "})
    put.refuse("negative sensitivity", pdp.PrivateRelease, model, -moved)
    put.refuse("sensitivity of other areas", pdp.PrivateRelease, model, moved[:-2])
    put.refuse("no such target", pdp.PrivateRelease, model, moved, target="theta_2")
    put.refuse("no such mechanism", pdp.PrivateRelease, model, moved, mechanism="guess")
    put.refuse("no draws", pdp.PrivateRelease(model, moved).draw, draws=0)
    zero = direct.copy(deep=True)
    zero["variance"][2] = 0.0
    put.refuse("zero variance", pdp.fay_herriot, zero, sigma_u=0.03)
    put.refuse("no covariates", pdp.fay_herriot, direct, "~ college", covariates[:3], sigma_u=0.03)
    put.refuse("no such covariate", pdp.fay_herriot, direct, "~ luck", covariates, sigma_u=0.03)
    answers = pdp.hajek(state()[0], **HOUSEHOLD)
    computed = pdp.fay_herriot(answers, sigma_u=0.03)
    put.refuse("variances from the answers", pdp.PrivateRelease, computed, moved,
               assumptions=DECLARED)  # fmt: skip
    put.release("from the answers", pdp.PrivateRelease(computed, answers["sensitivity"]))


@section
def ledgers(put):
    import pymc_dp as pdp

    ledger = pdp.PrivacyLedger(Path("programme.ledger"), rho=1.0, create=True)
    ledger.charge(0.25, label="first", record={"a": [1, None, "x"]})
    ledger.charge(0.5, label="north", part="North")
    ledger.charge(0.125, label="south", part="south ")
    put.value("ledger", ledger)
    put.value("figures", [ledger.budget, ledger.spent, ledger.remaining, ledger.epsilon(1e-6)])
    put.value("frame", ledger.to_dataframe())
    put.file("programme.ledger", ledger.path)
    put.refuse("too dear", ledger.charge, 0.5, label="second")
    put.refuse("conditional", ledger.charge, 0.1, label="second", claim="conditional")
    put.refuse("blank label", ledger.charge, 0.1, label=" ")
    put.refuse("no price", ledger.charge, 0.0, label="second")
    put.refuse("another budget", pdp.PrivacyLedger, ledger.path, 2.0)
    put.refuse("no ledger", pdp.PrivacyLedger, Path("nothing.ledger"))
    Path("broken.ledger").write_text("no ledger")
    put.refuse("broken", pdp.PrivacyLedger, Path("broken.ledger"))
    direct = small()
    release = pdp.PrivateRelease(pdp.fay_herriot(direct, sigma_u=0.03), direct["sensitivity"])
    poor = pdp.PrivacyLedger(Path("poor.ledger"), 1e-3, create=True, conditional=True)
    put.refuse("spent", release.draw, ledger=poor)


@section
def king_county(put):
    import pymc as pm

    import pymc_dp as pdp

    records = pd.read_csv(shared("brfss_king_county_2009_2013.csv.gz"))
    records = records.dropna(subset=["smoker", "hra"])
    places = {"outcome": "smoker", "weight": "w", "area": "hra"}
    public = {"variance": "kish", "rate": 0.15}
    direct = pdp.hajek(records, **places, **public)
    put.value("direct", direct)
    put.value("linearized", pdp.hajek(records, **places))
    for mechanism in ("joint", "independent"):
        options = {"mechanism": mechanism, "assumptions": DECLARED}
        model = pdp.fay_herriot(direct, sigma_u=0.04)
        release = pdp.PrivateRelease(model, direct["sensitivity"], **options)
        put.value(f"{mechanism}-recommend", pdp.recommend(release, rho=0.1))
        put.release(f"{mechanism}-calibrated", release.calibrate(rho=0.1))
        drawn = put.release(mechanism, release)
    put.picture("release", pdp.plot_release, drawn)
    figures = {"sigma_u": 0.04, "order": [2.0, 8.0], "delta": [1e-6]}
    put.value("check_proviso", pdp.check_proviso(records, **places, **figures, records=2))
    half = pm.HalfNormal.dist(0.1)
    costs = pdp.compare_variance_components(direct, prior=half, **figures)
    put.value("compare_variance_components", costs)
    prior = pm.Uniform.dist(0.035, 0.045)
    put.value("bound_estimated", pdp.bound_estimated(direct, prior=prior, sigma_u=0.04))


@section
def components(put):
    import pymc as pm

    import pymc_dp as pdp

    records, covariates = state()
    direct = small()
    options = {"formula": "~ college", "covariates": covariates}
    for method in ("reml", "ml", "moment"):
        put.value(f"estimate/{method}", pdp.estimate_sigma_u(direct, **options, method=method))
    grid = pdp.log_marginal_likelihood(direct, [0.0, 0.01, 0.03, 0.1], **options)
    put.value("log_marginal_likelihood", grid)
    half = pm.HalfNormal.dist(0.1)
    sample = pdp.sample_posterior(direct, **options, prior=half, draws=50, random_seed=1)
    put.container("sample_posterior", sample)
    put.container("sample_default", pdp.sample_posterior(direct, draws=20, random_seed=2))
    figures = {"order": [1.5, 2.0, 8.0, 32.0], "delta": [1e-6, 1e-4]}
    costs = pdp.compare_variance_components(direct, **options, sigma_u=0.03, prior=half, **figures)
    put.value("compare_variance_components", costs)
    put.picture("components", pdp.plot_variance_components, costs)
    given = {"sigma_u": 0.03, **HOUSEHOLD, "records": 2}
    proviso = pdp.check_proviso(records, **given, **options, **figures)
    put.value("check_proviso", proviso)
    put.picture("proviso", pdp.plot_proviso, proviso)
    public = pdp.check_proviso(records, **given, **KISH, reestimate=False, **figures)
    put.value("check_proviso-kish", public)
    bound = {"prior": pm.Uniform.dist(0.02, 0.04), "sigma_u": 0.03}
    put.value("bound_estimated", pdp.bound_estimated(direct, **options, **bound))
    put.refuse("bound without an end", pdp.bound_estimated, direct, prior=half)
    put.refuse("prior of both signs", pdp.sample_posterior, direct, prior=pm.Normal.dist())
    put.refuse("no such method", pdp.estimate_sigma_u, direct, method="guess")


@section
def noisy(put):
    """Noise on direct estimates, and on the moment estimate of sigma_u."""
    import pymc_dp as pdp

    direct, covariates = small(), state()[1]
    ledger = pdp.PrivacyLedger(Path("noisy.ledger"), rho=1.0, create=True)
    put.value("direct/formal", pdp.private_direct(direct, rho=0.1, ledger=ledger,
                                                  assumptions=DECLARED))  # fmt: skip
    put.value("direct/conditional", pdp.private_direct(direct, rho=0.5))
    loose = {"sigma_u", "between_variance", "noise_sd"}
    given = {"rho": 0.2, "bounds": (0, 0.5)}
    put.value("sigma_u/formal", pdp.private_sigma_u(direct, **given, ledger=ledger,
              assumptions=without(["sigma_u"])), loose)  # fmt: skip
    found = pdp.private_sigma_u(direct, "~ college + rural", covariates, rho=5.0)
    put.value("sigma_u/conditional", found, loose)
    put.file("noisy.ledger", ledger.path)
    put.refuse("private_direct, spent", pdp.private_direct, direct, rho=2.0, ledger=ledger,
               assumptions=DECLARED)  # fmt: skip
    put.refuse("private_direct, no price", pdp.private_direct, direct, rho=0.0)
    put.refuse("private_sigma_u, spent", pdp.private_sigma_u, direct, rho=2.0, ledger=ledger,
               assumptions=without(["sigma_u"]))  # fmt: skip
    put.refuse("private_sigma_u, sigma_u declared", pdp.private_sigma_u, direct, rho=2.0,
               assumptions=DECLARED)  # fmt: skip
    put.refuse("private_sigma_u, bounds", pdp.private_sigma_u, direct, rho=0.1, bounds=(1, 0))
    put.refuse("private_sigma_u, no price", pdp.private_sigma_u, direct, rho=-1.0)


@section
def audits(put):
    import pymc_dp as pdp
    from pymc_dp.audit import audit_one_release, audit_pair, lattice_test

    direct = small()
    release = pdp.PrivateRelease(pdp.fay_herriot(direct, sigma_u=0.03), direct["sensitivity"])
    spread = np.sqrt(direct["variance"].values)

    def in_floats(y, draws):
        return y + spread * np.random.default_rng(3).normal(size=(draws, y.size))

    found = {
        "pair": audit_pair(release, draws=300),
        "pair, one area": audit_pair(release, "R02", published="R02", draws=200, delta=1e-4),
        "pair, in floats": audit_pair(release, sampler=in_floats, draws=300),
        "one release": audit_one_release(release),
        "lattice": lattice_test(release, draws=300),
        "lattice, in floats": lattice_test(release, sampler=in_floats, draws=300),
    }
    for name, one in found.items():
        put.value(name, one)
        put.value(f"{name}.fields", vars(one) | {"passed": one.passed})
    put.refuse("audit_pair, no such area", audit_pair, release, "nowhere", draws=100)
    put.refuse("audit_pair, few draws", audit_pair, release, draws=3)


LAND = ["..####.", ".######", "###..##", "######.", ".####.."]


@section
def own_models(put):
    """Models of a user, as in docs/own-models.md."""
    import pymc as pm

    import pymc_dp as pdp

    rng = np.random.default_rng(11)
    cells = np.array([(i, j) for i, row in enumerate(LAND) for j, c in enumerate(row) if c == "#"])
    district = [f"{'ABCDEFG'[j]}{i + 1}" for i, j in cells]
    m = len(district)
    W = (np.abs(cells[:, None] - cells).sum(axis=2) == 1).astype(float)
    n = rng.integers(40, 200, m)
    variance = 0.2 * 0.8 / (0.7 * n)
    attrs = {"outcome_bounds": (0, 1), "unit": "person"}
    moved = xr.DataArray(rng.uniform(1.5, 3.0, m) / n, coords={"area": district}, attrs=attrs)
    estimate = 0.2 + 0.03 * np.sin(cells[:, 0] / 2) + rng.normal(0, np.sqrt(variance))

    def built(effect, after=lambda mean: mean):
        with pm.Model(coords={"area": district}) as model:
            y = pm.Data("direct", estimate, dims="area")
            mean = after(pm.Normal("beta", 0, 1) + effect())
            theta = pm.Deterministic("theta", mean, dims="area")
            pm.Normal("y", theta, np.sqrt(variance), observed=y, dims="area")
        return model

    def car(neighbours=W, scale=None):
        tau = 1 / 0.05**2 if scale is None else 1 / scale() ** 2
        return pm.CAR("u", mu=np.zeros(m), W=neighbours, alpha=0.9, tau=tau, dims="area")

    spatial = built(car)
    declared = {"sampling_variance": "a report", "sigma_u": "the survey before"}
    put.release("car", pdp.PrivateRelease(spatial, moved, assumptions=DECLARED), draws=2)
    independent = pdp.PrivateRelease(spatial, moved, mechanism="independent", assumptions=declared)
    put.refuse("calibrate a CAR model", independent.calibrate, rho=0.1)
    put.release("car-independent", independent)
    with built(car) as regional:
        north = (cells[:, 0] < 3).astype(float)
        halves = np.array([north, 1 - north])
        regional.add_coord("region", ["north", "south"])
        weights = halves / halves.sum(axis=1, keepdims=True)
        means = pm.math.dot(weights, regional["theta"])
        pm.Deterministic("regional_mean", means, dims="region")
        pm.Potential("benchmark", pm.logp(pm.Normal.dist(regional["theta"].mean(), 0.002), 0.21))
    put.release("regions", pdp.PrivateRelease(regional, moved, target="regional_mean"))

    names, years = [f"R{i}" for i in range(1, 5)], ["2017", "2018", "2019"]
    sd = rng.uniform(0.02, 0.05, (4, 3))
    with pm.Model(coords={"area": names, "year": years}) as yearly:
        y = pm.Data("direct", rng.normal(0.2, sd), dims=("area", "year"))
        start = pm.Normal.dist(0, 0.03)
        u = pm.GaussianRandomWalk("u", sigma=0.01, init_dist=start, dims=("area", "year"))
        theta = pm.Deterministic("theta", pm.Flat("level") + u, dims=("area", "year"))
        pm.Normal("y", theta, sd, observed=y, dims=("area", "year"))
    coords = {"area": names, "year": years, "record": [f"member of {a}" for a in names]}
    change = np.einsum("ay,ar->ayr", sd / 2, np.eye(4))
    panel = xr.DataArray(change, coords, tuple(coords), attrs={"outcome_bounds": (0, 1)})
    put.release("panel", pdp.PrivateRelease(yearly, panel))

    size = np.array([6, 8, 12])
    where = np.repeat(np.arange(3), size)
    people = [f"{names[i]}-{k}" for i, count in enumerate(size) for k in range(count)]
    with pm.Model(coords={"county": names[:3], "household": people}) as nested:
        y = pm.Data("income", rng.normal(10.5, 0.5, where.size).clip(9, 12), dims="household")
        u = pm.Normal("u", 0, 0.15, dims="county")
        b = pm.Normal("b", 0, 100)
        theta = pm.Deterministic("theta", b + u, dims="county")
        pm.Normal("y", b + u[where], 0.6, observed=y, dims="household")
    each = xr.DataArray(np.full(where.size, 3.0), coords={"household": people},
                        attrs={"outcome_bounds": (9, 12), "unit": "household"})  # fmt: skip
    put.release("nested", pdp.PrivateRelease(nested, each))

    def laplace():
        return pm.Laplace("u", 0, 0.03, dims="area")

    bounded = built(laplace)
    draws = estimate + np.sqrt(0.7 * variance) * rng.normal(size=(2, 800, m))
    theta = xr.DataArray(draws, dims=("chain", "draw", "area"), coords={"area": district})
    observed = xr.Dataset({"y": ("area", estimate)}, coords={"area": district})
    made = fit(posterior=xr.Dataset({"theta": theta}), observed_data=observed)
    concave = {"bound": "log-concave", "assumptions": declared}
    put.release("log-concave", pdp.PrivateRelease(bounded, moved, idata=made, **concave))
    put.refuse("log-concave without a fit", pdp.PrivateRelease(bounded, moved, **concave).draw)

    island, lopsided = W.copy(), W.copy()
    island[5] = island[:, 5] = 0
    lopsided[0, -1] = 1
    with built(car) as second:
        pm.Normal("other", second["theta"], 0.1, observed=np.zeros(m))
    for name, model in {
        "free variance": built(lambda: car(scale=lambda: pm.HalfNormal("sigma", 0.1))),
        "Laplace effects": bounded,
        "a rounded mean": built(car, lambda mean: mean.round()),
        "a product of latents": built(car, lambda mean: mean * pm.Normal("slope", 1, 0.1)),
        "an island": built(lambda: pm.ICAR("u", W=island, sigma=0.05, dims="area")),
        "lopsided neighbours": built(lambda: car(lopsided)),
        "two observed": second,
        "uniform effects": built(lambda: pm.Uniform("u", -1, 1, dims="area")),
    }.items():
        put.refuse(name, pdp.PrivateRelease, model, moved)
    student = built(lambda: pm.StudentT("u", nu=4, sigma=0.03, dims="area"))
    put.refuse("Student effects, bound", pdp.PrivateRelease, student, moved, bound="log-concave")


@section
def command_line(put):
    run = put.command
    for command in ("", "demo", "plan", "release", "ledger", "ledger show", "ledger create"):
        run(f"help/{command or 'pymc-dp'}", *command.split(), "--help")
    run("nothing")
    run("version", "--version")
    run("demo", "demo", files=["pymc-dp-demo"])
    run("demo again", "demo")

    records, covariates = state(6, 600)
    records.to_csv("records.csv", index=False)
    records.assign(weight=np.where(records.index == 5, np.nan, records["weight"])).to_csv(
        "holes.csv", index=False
    )
    covariates.rename_axis("area").to_csv("x.csv")
    shutil.copy(shared("brfss_king_county_2009_2013.csv.gz"), "king.csv.gz")
    declare = ["--declare", *(f"{key}={words}" for key, words in DECLARED.items())]
    columns = ["--weight", "weight", "--area", "area"]
    kish = ["--rate", "0.15", "--design-factor", "1.2"]
    model = ["--formula", "~ college", "--covariates", "x.csv", "--sigma-u", "0.04"]
    plan = ["plan", "records.csv", *columns, *kish, *model]
    household = ["--unit", "household", "--sigma-u", "0.03", *declare]
    run("plan", *plan, *household, "--out", "p.csv", files=["p.csv"])
    run("plan rho", *plan, "--rho", "0.05", "--out", "q.csv", files=["q.csv"])
    run("plan epsilon", *plan, "--epsilon", "1", "--delta", "1e-5", "--mechanism", "independent")
    run("ledger create", "ledger", "create", "one.ledger", "--rho", "1.5", "--conditional")
    run("ledger create again", "ledger", "create", "one.ledger", "--rho", "1.5")

    release = ["release", "records.csv", "--outcome", "smoker", *columns]
    formal = [*release, "--variance", "kish", *kish, *model, *declare]
    run("formal", *formal, "--ledger", "one.ledger", "--table", "a.csv", "--plots", "pictures",
        "--out", "a.nc", files=["a.nc", "a.csv", "pictures"])  # fmt: skip
    run("zarr", *formal, "--mechanism", "independent", "--unit", "household", "--delta", "3e-7",
        "--out", "b.zarr", files=["b.zarr"])  # fmt: skip
    king = ["--outcome", "smoker", "--weight", "w", "--area", "hra", "--sigma-u", "0.04"]
    king = ["release", "king.csv.gz", *king, "--missing", "drop"]
    poor = ["--conditional", "--ledger", "one.ledger", "--table", "c.csv", "--out", "c.nc"]
    king_out = ["--conditional", "--table", "k.csv", "--out", "k.nc"]
    run("king", *king, *king_out, files=["k.nc", "k.csv"])
    run("ledger show", "ledger", "show", "one.ledger", files=["one.ledger"])
    run("ledger show delta", "ledger", "show", "one.ledger", "--delta", "1e-9")

    out = ["--out", "d.nc"]
    for name, arguments in {
        "over budget": [*king, *poor],
        "conditional": [*king, *out],
        "exists": [*formal, "--out", "a.nc"],
        "no file": ["release", "none.csv", *formal[2:], *out],
        "no column": [*formal, *out, "--outcome", "drinker"],
        "missing weight": ["release", "holes.csv", *formal[2:], *out],
        "false declaration": [*release, "--sigma-u", "0.04", *declare, *out],
        "no declaration": [*release, "--sigma-u", "0.04", *out, "--declare", "luck=x"],
        "formula": [*formal, *out, "--formula", "~ luck"],
        "no sigma_u": [*release, *out],
        "delta": [*formal, *out, "--delta", "2"],
        "no ledger": [*formal, *out, "--ledger", "none.ledger"],
        "suffix": [*formal, "--out", "d.txt"],
        "plan, no weight": ["plan", "holes.csv", *plan[2:]],
        "plan, two targets": [*plan, "--rho", "1", "--epsilon", "1"],
        "ledger show, none": ["ledger", "show", "none.ledger"],
        "no such command": ["publish"],
    }.items():
        run(f"refused/{name}", *arguments)
    put.value("left", sorted(path.name for path in Path().iterdir()))


def write(folder):
    """Write everything to a new folder."""
    folder.mkdir(parents=True)
    folder, origin = folder.resolve(), Path.cwd()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import h5netcdf  # noqa: F401
        import matplotlib.pyplot  # noqa: F401
        import pymc  # noqa: F401
    replace_chance_and_clock()
    import pymc_dp

    masks = {str(Path(pymc_dp.__file__).parent): "<package>", sys.executable: "<python>"}
    broken = []
    for function in SECTIONS:
        name = function.__name__
        CHANCE.start(name)
        temporary = tempfile.mkdtemp(prefix="outputs-")
        put = Writer(folder / name, masks | {str(Path(temporary).resolve()): "<folder>"})
        began = CLOCK.now()
        os.chdir(temporary)
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                function(put)
        except Exception:  # the others may still say something
            broken.append(name)
            put.text("broken.txt", traceback.format_exc())
        finally:
            os.chdir(origin)
            shutil.rmtree(temporary)
        said = dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in heard)
        put.text("warnings.txt", "\n".join(said) + "\n")
        put.text("refused.txt", "\n".join(put.refused) + "\n")
        took = (CLOCK.now() - began).total_seconds()
        print(f"{name}: {sum(p.is_file() for p in put.folder.rglob('*'))} files, {took:.0f} s")
    if not CHANCE.noises:
        raise AssertionError("no noise was taken from the replaced OpenDP: runs cannot agree")
    if broken:
        raise SystemExit(f"broke off, see broken.txt in {', '.join(broken)}")


# Comparing


INLINE = set("a abbr b br code em i kbd mark q small span strong sub sup text tspan var".split())
VOID = set("area base br col embed hr img input link meta source track wbr".split())


class Parsed(html.parser.HTMLParser):
    """A page as lines: elements with their attributes, and texts."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.parts = [("block", "")]
        self.feed(page)
        self.close()
        self.parts.append(("block", ""))

    def handle_starttag(self, tag, attrs):
        shown = "".join(f" {key}={value or ''!r}" for key, value in sorted(attrs))
        self._element(tag, f"<{tag}{shown}>")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            self._element(tag, f"</{tag}>")

    def handle_decl(self, decl):
        self._element("!", f"<!{decl.lower()}>")

    def handle_data(self, data):
        if self.parts[-1][0] == "data":
            data = self.parts.pop()[1] + data
        self.parts.append(("data", data))

    def _element(self, tag, shown):
        self.parts.append(("inline" if tag in INLINE else "block", shown))

    def lines(self):
        """One a part; spaces count between inline elements only."""
        kinds = [kind for kind, _ in self.parts]
        for k, (kind, shown) in enumerate(self.parts):
            if kind == "data":
                shown = re.sub(r"\s+", " ", shown)
                shown = shown.lstrip() if kinds[k - 1] == "block" else shown
                shown = shown.rstrip() if kinds[k + 1] == "block" else shown
            if shown:
                yield f"  {shown}" if kind == "data" else shown


def loosely(line):
    """A line in parts, of which every second is a figure that is compared to 1e-9."""
    if line.startswith("~ "):
        return ["~ ", float.fromhex(line.split()[1]), ""]
    parts = re.split(r'("noise_sd": )([-+.e0-9]+)', line)
    return [x for k in range(0, len(parts) - 1, 3) for x in
            (parts[k] + parts[k + 1], float(parts[k + 2]))] + parts[-1:]  # fmt: skip


def close_enough(one, other):
    """Whether two lines differ by less than 1e-9 in the noise of private_sigma_u alone."""
    a, b = loosely(one), loosely(other)
    figures = zip(a[1::2], b[1::2], strict=False)
    return a[::2] == b[::2] and all(math.isclose(x, y, rel_tol=1e-9) for x, y in figures)


def read(path):
    text = path.read_bytes().decode("utf-8")
    return list(Parsed(text).lines()) if path.suffix == ".html" else text.split("\n")


def differences(a, b):
    """Lines that say where two lists of lines differ, and after which heading."""
    for kind, start, end, begin, stop in difflib.SequenceMatcher(None, a, b, False).get_opcodes():
        if kind != "equal":
            head = next((x for x in reversed(a[:start]) if x[:1] not in ("", " ", "~")), "")
            yield f"  line {start + 1}, after {head[:100]!r}"
            yield from (f"    - {x}" for x in a[start:end])
            yield from (f"    + {x}" for x in b[begin:stop])


def compare(one, other):
    """Print how two folders differ; the number of files that do."""
    names = {path.relative_to(f) for f in (one, other) for path in f.rglob("*") if path.is_file()}
    if not names:
        raise SystemExit(f"nothing in {one} and {other}")
    differing = 0
    for name in sorted(names):
        absent = [folder for folder in (one, other) if not (folder / name).is_file()]
        if absent:
            found = [f"  not in {absent[0]}"]
        elif (one / name).read_bytes() == (other / name).read_bytes():
            continue
        else:
            a, b = read(one / name), read(other / name)
            if len(a) == len(b):
                b = [x if close_enough(x, y) else y for x, y in zip(a, b, strict=True)]
            found = list(differences(a, b))
        if found:
            differing += 1
            print("\n".join([f"{name}:", *found]))
    print(f"{differing} of {len(names)} files differ")
    return differing


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder]:
            write(Path(folder))
        case ["compare", one, other]:
            sys.exit(min(compare(Path(one), Path(other)), 1))
        case _:
            sys.exit(__doc__)
