"""Files of synonyms, those that come with Deskmate and a desk's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import StartupError
from app.knowledge.synonyms import read_thesaurus
from app.services.knowledge import SYNONYMS
from app.store.knowledge.concepts import MAX_QUERY_WORDS, read_query


def test_a_desk_adds_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("- [RMA, return number]\n- [7, seven]\n")
    thesaurus = read_thesaurus(SYNONYMS, own)
    (rma,) = read_query("what is an RMA?", thesaurus)
    assert set(rma.variants) == {("rma",), ("return", "numb")}
    (delete,) = read_query("deleting", thesaurus)
    assert ("remov",) in delete.variants


@pytest.mark.parametrize("content", ["a: b", "- word", "- [[a]]", "- [", "\x00"])
def test_a_file_that_is_no_list_of_groups_is_refused(tmp_path: Path, content: str) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(content)
    with pytest.raises(StartupError, match=r"own\.yaml"):
        read_thesaurus(own)
    with pytest.raises(StartupError, match=r"missing\.yaml"):
        read_thesaurus(tmp_path / "missing.yaml")


def test_a_query_is_no_longer_than_it_may_be() -> None:
    assert len(read_query(" ".join(f"w{n}" for n in range(400)), read_thesaurus(SYNONYMS))) == MAX_QUERY_WORDS
