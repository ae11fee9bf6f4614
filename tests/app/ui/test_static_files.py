"""Scripts and stylesheets as browsers get them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.ui.static_files import PageFiles


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
    app.mount("/files", PageFiles(directory=folder))
    return TestClient(app)


def get(client: TestClient, name: str, **headers: str):  # type: ignore[no-untyped-def]
    return client.get(f"/files/{name}", headers={key.replace("_", "-"): value for key, value in headers.items()})


def test_text_is_compressed_for_browsers_that_take_it(client: TestClient, folder: Path) -> None:
    with client.stream("GET", "/files/a.js", headers={"Accept-Encoding": "br, gzip;q=0.8"}) as response:
        sent = b"".join(response.iter_raw())
        assert response.headers["Content-Encoding"] == "gzip"
        assert int(response.headers["Content-Length"]) == len(sent) < 1000
        assert gzip.decompress(sent) == (folder / "a.js").read_bytes()
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


def test_no_source_is_served(client: TestClient) -> None:
    assert get(client, "secret.py").status_code == 404
