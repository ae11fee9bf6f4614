"""Collects the texts that visitors see, updates the catalogues of ``app/cases/locale``, compiles them for browsers.

Run by ``make docs``. A new language is one file: ``app/cases/locale/LANGUAGE.po``, which may be empty; this script adds
its untranslated texts. To fail if anything is out of date: .venv/bin/python scripts/texts.py --check
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from app.cases.sentences import DEFAULT_LANGUAGE, Sentence  # noqa: E402

CATALOGUES = ROOT / "app/cases/locale"
WIDGET = ROOT / "app/ui/widget"
_HEADER = "# {language}: the texts that visitors see. Written by `make docs`, which keeps the translations.\n"
_LOADER_TEXTS = re.compile(r"(?<=/\* texts \*/ ).*(?= /\* end of texts \*/)")


def collect() -> dict[str, list[str]]:
    """Returns the texts in English and the files that use them."""
    found: dict[str, list[str]] = {str(sentence): ["app/cases/sentences.py"] for sentence in Sentence}
    for file in sorted(WIDGET.glob("*.js")):
        for text in _texts_of(file):
            files = found.setdefault(text, [])
            name = file.relative_to(ROOT).as_posix()
            if name not in files:
                files.append(name)
    return found


def _texts_of(file: Path) -> Iterator[str]:
    with file.open("rb") as source:
        for _, text, _, _ in extract(
            "javascript", source, keywords={"t": None}, options={"parse_template_string": True}
        ):
            if isinstance(text, str):
                yield text


def updated(catalogue: Catalog, texts: dict[str, list[str]]) -> str:
    """Returns the catalogue's file with these texts: those that are gone are dropped, new ones are untranslated."""
    fresh = Catalog(locale=catalogue.locale, fuzzy=False)
    for text, files in texts.items():
        known = catalogue.get(text)
        fresh.add(text, known.string if known is not None else "", locations=[(name, 0) for name in files])
    out = io.BytesIO()
    write_po(out, fresh, width=110, omit_header=True, include_lineno=False)
    language = str(catalogue.locale)
    header = f'msgid ""\nmsgstr ""\n"Language: {language}\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
    return f"{_HEADER.format(language=language)}{header}{out.getvalue().decode().strip()}\n"


def read(file: Path) -> Catalog:
    """Returns a language's catalogue."""
    with file.open("rb") as source:
        return read_po(source, locale=file.stem)


def translations(catalogue: Catalog, texts: list[str]) -> dict[str, str]:
    """Returns the translations there are, by their text."""
    found = ((text, catalogue.get(text)) for text in texts)
    return {text: str(entry.string) for text, entry in found if entry is not None and entry.string}


def outputs() -> dict[Path, str]:
    """Returns what this script writes: the file and its text."""
    texts = collect()
    catalogues = {file.stem: read(file) for file in sorted(CATALOGUES.glob("*.po"))}
    written: dict[Path, str] = {}
    launcher: dict[str, dict[str, str]] = {}
    for language, catalogue in catalogues.items():
        written[CATALOGUES / f"{language}.po"] = updated(catalogue, texts)
        in_frame = [text for text, files in texts.items() if files != ["app/cases/sentences.py"]]
        compiled = json.dumps(translations(catalogue, in_frame), ensure_ascii=False, indent=2)
        written[WIDGET / f"texts/{language}.js"] = (
            f"// Written by `make docs` from app/cases/locale.\n\nexport default {compiled};\n"
        )
        in_loader = [text for text, files in texts.items() if "app/ui/widget/loader.js" in files]
        launcher[language] = translations(catalogue, in_loader)
    languages = json.dumps(sorted({DEFAULT_LANGUAGE, *catalogues}))
    written[WIDGET / "texts/languages.js"] = (
        "// Written by `make docs`: the languages of app/cases/locale, and the texts' own.\n\n"
        f"/** @type {{string[]}} */\nexport const languages = {languages};\n"
    )
    loader = WIDGET / "loader.js"
    embedded = json.dumps(launcher, ensure_ascii=False, separators=(", ", ": "))
    written[loader] = _LOADER_TEXTS.sub(lambda _: embedded, loader.read_text(encoding="utf-8"))
    return written


def stale() -> list[Path]:
    """Returns the files that are not as this script would write them."""
    return [file for file, text in outputs().items() if not file.exists() or file.read_text(encoding="utf-8") != text]


def main() -> None:
    if "--check" in sys.argv[1:]:
        if old := stale():
            sys.exit(f"Out of date: {', '.join(str(file.relative_to(ROOT)) for file in old)}. Run: make docs")
        return
    for file, text in outputs().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
