"""Scripts and stylesheets as browsers get them."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import brotli  # type: ignore[import-untyped]
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.ui.joined_files import JoinedFile
from app.ui.static_files import HashedFiles, PageFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.js", "b.js"):
        (tmp_path / name).write_text(name * 1000)
        os.utime(tmp_path / name, (1, 1))  # of the same size and time: Starlette gives both one ETag
    (tmp_path / "small.css").write_text("a{}")
    (tmp_path / "font.woff2").write_bytes(b"x" * 1000)
    (tmp_path / "secret.py").write_text("x = 1")
    return tmp_path


@pytest.fixture
def client(folder: Path) -> TestClient:
    app = FastAPI()
    joined = JoinedFile(
        "text/javascript", folder, lambda: ["a.js", "b.js"], lambda: (folder / "a.js").read_text() + "b"
    )
    app.mount("/files", PageFiles(directory=folder, joined={"both.js": joined}))
    return TestClient(app)


def get(client: TestClient, name: str, **headers: str):  # type: ignore[no-untyped-def]
    return client.get(f"/files/{name}", headers={key.replace("_", "-"): value for key, value in headers.items()})


@pytest.mark.parametrize(
    ("accepted", "encoding", "decompress"),
    [("gzip, deflate, br", "br", brotli.decompress), ("br;q=0, gzip;q=0.8", "gzip", gzip.decompress)],
)
def test_text_is_compressed_for_browsers_that_take_it(
    client: TestClient, folder: Path, accepted: str, encoding: str, decompress: Callable[[bytes], bytes]
) -> None:
    with client.stream("GET", "/files/a.js", headers={"Accept-Encoding": accepted}) as response:
        sent = b"".join(response.iter_raw())
        assert response.headers["Content-Encoding"] == encoding
        assert int(response.headers["Content-Length"]) == len(sent) < 1000
        assert decompress(sent) == (folder / "a.js").read_bytes()
    assert get(client, "b.js").text == "b.js" * 1000, "another file with the same ETag"


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("a.js", {"Accept_Encoding": "identity"}),
        ("a.js", {"Accept_Encoding": "gzip;q=0"}),
        ("a.js", {"Accept_Encoding": "gzip", "Range": "bytes=0-3"}),
        ("small.css", {"Accept_Encoding": "gzip"}),
        ("font.woff2", {"Accept_Encoding": "gzip"}),
    ],
)
def test_the_rest_is_sent_as_it_is(client: TestClient, name: str, headers: dict[str, str]) -> None:
    response = get(client, name, **headers)
    assert "Content-Encoding" not in response.headers
    assert response.status_code == (206 if "Range" in headers else 200)


def test_a_browser_revalidates_and_caches_know_that_the_encoding_matters(client: TestClient) -> None:
    first = get(client, "a.js", Accept_Encoding="gzip")
    assert first.headers["Cache-Control"] == "no-cache"
    assert "Accept-Encoding" in first.headers["Vary"]
    again = get(client, "a.js", Accept_Encoding="gzip", If_None_Match=first.headers["ETag"])
    assert (again.status_code, again.content) == (304, b"")


def test_a_changed_file_is_sent_as_it_is_now(client: TestClient, folder: Path) -> None:
    get(client, "a.js")
    (folder / "a.js").write_text("new " * 1000)
    assert get(client, "a.js").text == "new " * 1000


def test_a_file_that_is_made_of_others_is_sent_as_any_other(client: TestClient, folder: Path) -> None:
    for encoding in ("identity", "gzip", "br"):
        response = get(client, "both.js", Accept_Encoding=encoding)
        assert response.text == (folder / "a.js").read_text() + "b"
        assert response.headers["Content-Type"].startswith("text/javascript")
        assert (response.headers["Cache-Control"], response.headers["Vary"]) == ("no-cache", "Accept-Encoding")
        again = get(client, "both.js", Accept_Encoding=encoding, If_None_Match=response.headers["ETag"])
        assert (again.status_code, again.content) == (304, b"")
    (folder / "a.js").write_text("new " * 1000)
    changed = get(client, "both.js", Accept_Encoding="br", If_None_Match=response.headers["ETag"])
    assert changed.text == "new " * 1000 + "b"
    assert client.post("/files/both.js").status_code == 405


def test_a_file_whose_name_tells_its_content_is_kept_by_browsers(folder: Path) -> None:
    (folder / "logo-D4NPp-_W.png").write_bytes(b"x" * 1000)
    app = FastAPI()
    app.mount("/files", HashedFiles(directory=folder))
    client = TestClient(app)
    for name, encoding in (("a.js", "br"), ("logo-D4NPp-_W.png", None)):
        response = get(client, name, Accept_Encoding="br")
        assert response.headers["Cache-Control"] == "private, max-age=31536000, immutable"
        assert response.headers.get("Content-Encoding") == encoding
    assert get(client, "missing.js").status_code == 404


def test_no_source_is_served(client: TestClient) -> None:
    assert get(client, "secret.py").status_code == 404
