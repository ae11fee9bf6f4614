"""The texts that visitors see: each language has all of them, and what browsers load is written from the catalogues."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from app.ui.widget.pages import frame_page, loader_script

SCRIPT = Path(__file__).parents[3] / "scripts" / "texts.py"
MAX_LOADER_BYTES = 8000


@pytest.fixture(scope="module")
def texts() -> ModuleType:
    spec = spec_from_file_location("texts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_catalogues_and_what_browsers_load_are_up_to_date(texts: ModuleType) -> None:
    assert texts.stale() == [], "run: make docs"


def test_every_text_is_translated_with_the_same_values_in_every_language(texts: ModuleType) -> None:
    collected = list(texts.collect())
    assert len(collected) > 50
    for file in sorted(texts.CATALOGUES.glob("*.po")):
        translated = texts.translations(texts.read(file), collected)
        assert set(collected) - set(translated) == set(), f"{file.name} lacks these: translate them"
        for text, translation in translated.items():
            assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", translation)), text


def test_another_language_is_one_file(texts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in texts.CATALOGUES.glob("*.po"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "fr.po").write_text('msgid "Open chat"\nmsgstr "Ouvrir le chat"\n')
    monkeypatch.setattr(texts, "CATALOGUES", tmp_path)
    written = texts.outputs()
    assert "Ouvrir le chat" in written[texts.WIDGET / "texts/fr.js"]
    assert "Ouvrir le chat" in written[texts.WIDGET / "loader.js"]
    assert '"fr"' in written[texts.WIDGET / "texts/languages.js"]
    assert 'msgid "Send"\nmsgstr ""' in written[tmp_path / "fr.po"]


def test_theloader_script_is_small_and_has_no_comment_left() -> None:
    script = loader_script()
    assert len(script.encode()) < MAX_LOADER_BYTES
    assert not re.search(r"^\s*//|/\*\*", script, re.MULTILINE)


def test_origins_cannot_leave_their_attribute() -> None:
    page = frame_page(["https://a.example", '"><script>alert(1)</script>'])
    assert 'content="https://a.example &quot;&gt;&lt;script&gt;' in page
