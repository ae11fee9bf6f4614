"""What `scripts/clients.sh` installs: pinned, with hashes, and not the release of litellm that was compromised."""

from __future__ import annotations

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent


def test_every_package_from_pypi_is_pinned_with_hashes() -> None:
    lock = (FOLDER / "requirements-clients.txt").read_text("utf-8")
    entries = re.split(r"(?m)^(?=[a-z0-9])", lock)[1:]
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==[^ ]+ ", entry), entry
        assert "--hash=sha256:" in entry, entry
    wanted = re.findall(r"(?m)^([a-z0-9-]+)", (FOLDER / "requirements-clients.in").read_text("utf-8"))
    assert set(wanted) <= {entry.partition("==")[0] for entry in entries}


def test_every_package_from_npm_is_pinned_with_hashes() -> None:
    lock = json.loads((FOLDER / "node" / "package-lock.json").read_text("utf-8"))
    package = json.loads((FOLDER / "node" / "package.json").read_text("utf-8"))
    assert lock["packages"][""]["dependencies"] == package["dependencies"]
    for name, entry in lock["packages"].items():
        assert not name or entry["integrity"].startswith("sha512-"), name


def test_none_brings_litellm() -> None:
    """Its release 1.107.0 is compromised; a resolver would take it for whatever names litellm without a version."""
    for lock in (FOLDER / "requirements-clients.txt", FOLDER / "node" / "package-lock.json"):
        assert "litellm" not in lock.read_text("utf-8")
