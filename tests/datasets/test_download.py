"""Downloads from a real server on this machine: once, whole, checked, or an error that says why."""

from __future__ import annotations

import hashlib
import http.server
import io
import socket
import threading
import zipfile

import pandas as pd
import pytest
from factories import files

from pymc_dp.datasets import _download as files_fetch
from pymc_dp.datasets import fetch_acs_pums, fetch_brfss, read_acs_pums, read_brfss

pytest.importorskip("pooch", reason="pooch is not installed")
pytest.importorskip("tqdm", reason="tqdm is not installed")

WASHINGTON = "/2024/1-Year/csv_pwa.zip"


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The zips as agencies make them, by the path they have on the server."""
    folder = tmp_path_factory.mktemp("archives")
    xport = files.write_xport(folder / "plain.xpt", files.respondents())
    members = {
        WASHINGTON: {"psam_p53.csv": files.persons().query("ST == '53'").to_csv(index=False)},
        "/2024/1-Year/csv_pus.zip": {
            "psam_pusa.csv": files.persons().iloc[:17].to_csv(index=False),
            "psam_pusb.csv": files.persons().iloc[17:].to_csv(index=False),
        },
        "/2023/5-Year/csv_por.zip": {"psam_p41.csv": files.persons().to_csv(index=False)},
        "/2023/files/LLCP2023XPT.zip": {"LLCP2023.XPT ": xport.read_bytes()},
        "/2024/files/LLCP2024XPT.zip": {"README.txt": "moved"},
    }
    archives = {}
    for path, contents in members.items():
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
        archives[path] = buffer.getvalue()
    return archives


@pytest.fixture
def server(archives, monkeypatch):
    """Serve the zips; `answers` lists what is done wrong with the next requests."""
    monkeypatch.setattr(files_fetch, "PAUSE", 0.01)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.requests.append(self.path)
            body, status, length = archives.get(self.path), 200, None
            if body is None:
                body, status = b"<html>Not Found</html>", 404
            answer = self.server.answers.pop(0) if self.server.answers else "right"
            if answer == "page":
                body = b"\n<!DOCTYPE html><html>We are improving this site.</html>"
            elif answer == "busy":
                body, status = b"busy", 503
            elif answer == "broken off":
                body, length = body[: len(body) // 2], len(body)
            elif answer == "half":
                body = body[: len(body) // 2]
            self.send_response(status)
            self.send_header("Content-Length", str(length or len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests, server.answers = [], []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def fetch(server, tmp_path):
    """Fetch Washington's file of 2024."""

    def fetch(state="wa", year=2024, **options):
        return fetch_acs_pums(state, year=year, folder=tmp_path, base_url=server.url, **options)

    return fetch


def left(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


class TestWhatIsReceived:
    def test_a_states_file_goes_straight_to_the_reader(self, fetch, server, archives, tmp_path):
        path = fetch()
        assert path == tmp_path / "acs" / "2024" / "1-Year" / "csv_pwa.zip"
        assert path.read_bytes() == archives[WASHINGTON]
        assert server.requests == [WASHINGTON]
        expected = files.persons().query("ST == '53'")
        assert read_acs_pums(path)["SERIALNO"].tolist() == expected["SERIALNO"].tolist()

    @pytest.mark.parametrize("state", [(), ("us",), ("US",)])
    def test_the_nations_file_is_the_default(self, server, tmp_path, state):
        path = fetch_acs_pums(*state, year=2024, folder=tmp_path, base_url=server.url + "/")
        assert len(read_acs_pums(path)) == 40

    def test_five_years(self, fetch, server, tmp_path):
        path = fetch(41, year=2023, years=5)
        assert path == tmp_path / "acs" / "2023" / "5-Year" / "csv_por.zip"

    @pytest.mark.parametrize("state", ["wa", "WA", "53", 53])
    def test_states_by_code_or_abbreviation(self, fetch, server, state):
        fetch(state)
        assert server.requests == [WASHINGTON]

    def test_the_brfss(self, server, tmp_path):
        path = fetch_brfss(year=2023, folder=tmp_path, base_url=server.url)
        assert path == tmp_path / "brfss" / "LLCP2023XPT.zip"
        records = read_brfss(path, state=53)
        pd.testing.assert_series_equal(records["_LLCPWT"], files.respondents()["_LLCPWT"][:6])

    def test_progress_is_shown_unless_switched_off(self, fetch, capsys):
        fetch(progress=False)
        assert "100%" not in capsys.readouterr().err
        fetch("us")
        assert "100%" in capsys.readouterr().err

    def test_the_real_addresses(self, monkeypatch, tmp_path):
        asked = []
        monkeypatch.setattr(files_fetch, "_fetch", lambda url, *_: asked.append(url))
        fetch_acs_pums(year=2023)
        fetch_acs_pums("06", year=2022, years=5)
        fetch_brfss(year=2021)
        assert asked == [
            "https://www2.census.gov/programs-surveys/acs/data/pums/2023/1-Year/csv_pus.zip",
            "https://www2.census.gov/programs-surveys/acs/data/pums/2022/5-Year/csv_pca.zip",
            "https://www.cdc.gov/brfss/annual_data/2021/files/LLCP2021XPT.zip",
        ]

    def test_the_default_folder_is_the_users_cache(self, server, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / project)
        path = fetch_acs_pums("wa", year=2024, base_url=server.url)
        assert path == tmp_path / "pymc_dp" / "acs" / "2024" / "1-Year" / "csv_pwa.zip"


class TestHashes:
    def test_the_hash_is_said_and_kept_and_the_file_not_asked_for_again(
        self, fetch, server, archives, tmp_path, capfd
    ):
        path = fetch()
        digest = hashlib.sha256(archives[WASHINGTON]).hexdigest()
        record = path.with_name("csv_pwa.zip.sha256")
        assert record.read_text() == f"{digest}  csv_pwa.zip\n"
        assert left(tmp_path) == ["csv_pwa.zip", "csv_pwa.zip.sha256"]
        assert fetch() == path
        assert fetch(known_hash=digest) == path
        assert fetch(known_hash=f"sha256:{digest.upper()}") == path
        assert len(server.requests) == 1

    def test_a_known_hash_is_demanded_of_the_download(self, fetch, server, archives, tmp_path):
        digest = hashlib.sha256(archives[WASHINGTON]).hexdigest()
        assert fetch(known_hash=digest).exists()
        with pytest.raises(ValueError, match=r"csv_pus.zip: SHA-256 .*, not .* \(known_hash\)$"):
            fetch("us", known_hash=digest)
        # Asked once: another attempt would bring the same file.
        assert len(server.requests) == 2
        assert left(tmp_path) == ["csv_pwa.zip", "csv_pwa.zip.sha256"]

    def test_a_kept_file_with_another_hash_is_refused_and_kept(self, fetch, server):
        path = fetch()
        with pytest.raises(ValueError, match=r"SHA-256 .*, not 0+ \(known_hash\); remove"):
            fetch(known_hash="0" * 64)
        path.write_bytes(path.read_bytes() + b"x")
        with pytest.raises(ValueError, match=r"not .* \(csv_pwa.zip.sha256\); remove the file"):
            fetch()
        assert path.exists() and len(server.requests) == 1

    def test_a_download_after_the_file_was_removed_must_be_the_same(
        self, fetch, server, archives, tmp_path
    ):
        path = fetch()
        path.unlink()
        assert fetch() == path and len(server.requests) == 2
        path.unlink()
        record = path.with_name("csv_pwa.zip.sha256")
        digest = record.read_text().split()[0]
        record.write_text("0" * 64)
        with pytest.raises(ValueError, match=r"not 0+ \(csv_pwa.zip.sha256\)$"):
            fetch()
        assert left(tmp_path) == ["csv_pwa.zip.sha256"]
        # Whoever knows the new hash may have the new file.
        assert fetch(known_hash=digest) == path
        assert record.read_text().split()[0] == digest

    def test_a_file_put_there_by_hand_is_taken_and_its_hash_noted(
        self, fetch, server, archives, tmp_path
    ):
        path = tmp_path / "acs" / "2024" / "1-Year" / "csv_pwa.zip"
        path.parent.mkdir(parents=True)
        path.write_bytes(archives[WASHINGTON])
        assert fetch() == path and server.requests == []
        assert path.with_name("csv_pwa.zip.sha256").exists()

    @pytest.mark.parametrize("known_hash", ["abc", "g" * 64, "md5:" + "0" * 32])
    def test_what_is_no_sha256(self, fetch, server, known_hash):
        with pytest.raises(ValueError, match="known_hash must be a SHA-256 of 64"):
            fetch(known_hash=known_hash)
        assert server.requests == []


class TestWhatGoesWrong:
    @pytest.mark.parametrize("trouble", ["busy", "broken off"])
    def test_what_may_pass_is_tried_again(self, fetch, server, archives, trouble):
        server.answers = [trouble, trouble]
        assert fetch().read_bytes() == archives[WASHINGTON]
        assert len(server.requests) == 3

    @pytest.mark.parametrize(
        ("trouble", "what"), [("busy", "HTTP 503"), ("broken off", "ChunkedEncodingError")]
    )
    def test_three_failures_are_an_error_and_leave_nothing(
        self, fetch, server, tmp_path, trouble, what
    ):
        server.answers = [trouble] * 3
        with pytest.raises(ConnectionError, match=rf"csv_pwa.zip: not received .* \({what}\)"):
            fetch()
        assert len(server.requests) == 3
        assert left(tmp_path) == []
        assert fetch().exists()

    def test_no_server(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files_fetch, "PAUSE", 0.01)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
            with pytest.raises(ConnectionError, match=r"after 3 attempts \(ConnectionError\)"):
                fetch_acs_pums("wa", year=2024, folder=tmp_path, base_url=url)
        assert left(tmp_path) == []

    def test_a_file_that_the_server_does_not_have_is_asked_for_once(self, fetch, server, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"csv_por.zip: the server has no .*404"):
            fetch("or")
        assert len(server.requests) == 1
        assert left(tmp_path) == []

    @pytest.mark.parametrize(
        ("trouble", "what"), [("page", "a web page, not a zip"), ("half", "only the beginning")]
    )
    def test_a_wrong_answer_is_never_kept(self, fetch, server, tmp_path, trouble, what):
        server.answers = [trouble]
        with pytest.raises(ValueError, match=f"csv_pwa.zip: what the server sent is .*{what}"):
            fetch()
        assert left(tmp_path) == []

    def test_a_zip_of_something_else(self, server, tmp_path):
        with pytest.raises(ValueError, match=r"LLCP2024XPT.zip: a zip without a .xpt file"):
            fetch_brfss(year=2024, folder=tmp_path, base_url=server.url)
        assert left(tmp_path) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"state": "zz"}, "state must be a FIPS code or an abbreviation, got 'zz'"),
            ({"state": 3}, "state must be a FIPS code or an abbreviation, got 3"),
            ({"years": 3}, "years must be 1 or 5, got 3"),
            ({"year": 2006}, "no 1-year files before 2007"),
            ({"year": 2008, "years": 5}, "no 5-year files before 2009"),
            ({"year": 2020}, "no standard 1-year file of 2020"),
        ],
    )
    def test_files_that_do_not_exist_are_not_asked_for(self, fetch, server, options, message):
        with pytest.raises(ValueError, match=message):
            fetch(**options)
        assert server.requests == []

    def test_an_early_year_of_the_brfss(self, tmp_path):
        with pytest.raises(ValueError, match="begin in 2011, got year 2010"):
            fetch_brfss(year=2010, folder=tmp_path)

    def test_without_pooch_the_message_says_what_to_install(self, fetch, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "pooch", None)
        with pytest.raises(ImportError, match=r'pip install "pymc_dp\[fetch\]"'):
            fetch()
