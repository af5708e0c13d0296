"""Survey files as agencies write them."""

from __future__ import annotations

import struct
import zipfile

import numpy as np
import pandas as pd


def persons(state="ST", replicates=0):
    """A person file of the Census: record type first, codes without quotes, blanks for missing."""
    rng = np.random.default_rng(31)
    size = 40
    # The nation's file is cut at the 17th record here, and never within a household.
    quarters = {0, 9, 17, 18, 27, 36}
    data = pd.DataFrame(
        {
            "RT": "P",
            "SERIALNO": [f"2023{'GQ' if k in quarters else 'HU'}{k // 2:07d}" for k in range(size)],
            "DIVISION": 9,
            "SPORDER": 1 + np.arange(size) % 2,
            "PUMA": np.where(np.arange(size) < 20, "00101", "23301"),
            state: np.where(np.arange(size) % 20 < 10, "04", "53"),
            "PWGTP": rng.integers(1, 200, size),
            "AGEP": rng.integers(0, 90, size),
            "SCHL": [f"{k % 24 + 1:02d}" for k in range(size)],
            "POVPIP": [str(k) if k % 7 else "" for k in rng.integers(0, 501, size)],
        }
    )
    base = data["PWGTP"].to_numpy()
    extra = {f"PWGTP{k}": base + rng.integers(-250, 50, size) for k in range(1, replicates + 1)}
    return pd.concat([data, pd.DataFrame(extra, index=data.index)], axis=1)


def write_zip(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            text = data if isinstance(data, (str, bytes)) else data.to_csv(index=False)
            archive.writestr(name.replace("__", "."), text)
    return path


def ibm(value):
    """A number as SAS transport files keep it: IBM hexadecimal floating point."""
    if np.isnan(value):
        return b"." + bytes(7)
    if value == 0:
        return bytes(8)
    exponent, fraction = 64, abs(value)
    while fraction >= 1:
        fraction, exponent = fraction / 16, exponent + 1
    while fraction < 1 / 16:
        fraction, exponent = fraction * 16, exponent - 1
    sign = 0x80 if value < 0 else 0
    return struct.pack(">Q", int(fraction * 2**56) | (sign | exponent) << 56)


def write_xport(path, data):
    """A SAS transport file, version 5 (SAS technical note TS-140), of numeric columns."""

    def header(text, tail):
        return f"HEADER RECORD*******{text} HEADER RECORD!!!!!!!{tail}".ljust(80).encode()

    def padded(content, fill=b" "):
        return content + fill * (-len(content) % 80)

    stamp = b"01JAN24:00:00:00"
    library = b"SAS     SAS     SASLIB  9.4     Linux   " + b" " * 24 + stamp
    member = b"SAS     LLCP    SASDATA 9.4     Linux   " + b" " * 24 + stamp
    names = b"".join(
        struct.pack(">hhhh8s40s8shhh2s8shhl52x", 1, 0, 8, k + 1, name.ljust(8).encode(),
                    b" " * 40, b" " * 8, 0, 0, 0, b"  ", b" " * 8, 0, 0, 8 * k)
        for k, name in enumerate(data.columns)
    )  # fmt: skip
    rows = b"".join(ibm(float(v)) for row in data.to_numpy(dtype=float) for v in row)
    path.write_bytes(
        header("LIBRARY", "0" * 30)
        + library
        + stamp.ljust(80)
        + header("MEMBER ", "000000000000000001600000000140")
        + header("DSCRPTR", "0" * 30)
        + member
        + stamp.ljust(80)
        + header("NAMESTR", f"000000{len(data.columns):04d}" + "0" * 20)
        + padded(names)
        + header("OBS    ", "0" * 30)
        + padded(rows)
    )
    return path


def respondents():
    """A few records as the BRFSS has them, codes and all."""
    return pd.DataFrame(
        {
            "_STATE": [53.0] * 6 + [41.0] * 3,
            "_PSU": 2023000000.0 + np.arange(9),
            "_STSTR": [531011.0] * 3 + [531012.0] * 3 + [411011.0] * 3,
            "_LLCPWT": [200.5, 300.25, 1 / 3, 400, 150, 350, 10, 20, 30],
            "_SMOKER3": [1, 2, 3, 4, 9, np.nan, 1, 1, 4],
            "PHYSHLTH": [88, 77, 99, 5, 30, np.nan, 1, 2, 3],
        }
    )
