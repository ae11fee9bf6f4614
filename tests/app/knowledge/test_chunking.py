from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.knowledge.chunking import ChunkLimits, TooManyChunks, compose, cut
from app.knowledge.readers.blocks import Block, BlockKind

SMALL = ChunkLimits(min_tokens=10, max_tokens=20, max_whole_tokens=40, max_overlap_tokens=6)


def count(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def paragraph(text: str, *headings: str) -> Block:
    return Block(BlockKind.PARAGRAPH, text, headings)


def texts(blocks: list[Block]) -> list[str]:
    text, chunks = cut(blocks, count, SMALL)
    return [text[chunk.start : chunk.end] for chunk in chunks]


blocks = st.builds(
    Block,
    st.sampled_from(BlockKind),
    st.text(st.sampled_from("ab .\n|-é。"), max_size=300).map(str.rstrip).filter(str.strip),
    st.lists(st.sampled_from(["One", "Two"]), max_size=2).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(blocks, max_size=6))
def test_offsets_are_exact_and_nothing_is_lost(document: list[Block]) -> None:
    text, starts = compose(document)
    for block, start in zip(document, starts, strict=True):
        assert text[start : start + len(block.text)] == block.text
    cut_text, chunks = cut(document, count, SMALL)
    assert cut_text == text
    covered = set[int]()
    for chunk in chunks:
        assert 0 <= chunk.start < chunk.end <= len(text)
        assert chunk.tokens <= SMALL.max_whole_tokens
        covered.update(range(chunk.start, chunk.end))
    for block, start in zip(document, starts, strict=True):
        assert all(at in covered or text[at].isspace() for at in range(start, start + len(block.text)))
    assert [chunk.start for chunk in chunks] == sorted(chunk.start for chunk in chunks)


def test_small_blocks_of_a_section_are_merged_and_sections_are_not() -> None:
    document = [paragraph("a b c", "One"), paragraph("d e", "One"), paragraph("f", "Two"), paragraph("g", "Two", "In")]
    assert texts(document) == ["a b c\n\nd e", "f", "g"]
    text, chunks = cut(document, count, SMALL)
    assert [chunk.heading for chunk in chunks] == ["One", "Two", "Two > In"]
    assert text == "One\n\na b c\n\nd e\n\nTwo\n\nf\n\nIn\n\ng"


def test_a_chunk_that_is_large_enough_does_not_grow() -> None:
    assert len(texts([paragraph("a " * 11), paragraph("b")])) == 2
    assert len(texts([paragraph("a " * 8), paragraph("b " * 13)])) == 2


def test_a_long_paragraph_is_cut_at_sentences_of_which_one_overlaps() -> None:
    sentences = [f"Word{at} two three four." for at in range(8)]
    parts = texts([paragraph(" ".join(sentences))])
    assert parts[0] == " ".join(sentences[:4])
    assert parts[1] == " ".join(sentences[3:8]) or parts[1].startswith(sentences[4])
    assert all(count(part) <= 20 for part in parts)


def test_a_short_last_sentence_is_in_both_parts() -> None:
    first, shared, rest = "a " * 15 + "a.", "b c.", "d " * 14 + "d."
    parts = texts([paragraph(f"{first} {shared} {rest}")])
    assert parts == [f"{first} {shared}", f"{shared} {rest}"]


def test_tables_and_lists_stay_whole_up_to_their_limit() -> None:
    rows = ["| Plan | Days |", *(f"| P{at} | {at} |" for at in range(6))]
    assert texts([Block(BlockKind.TABLE, "\n".join(rows))]) == ["\n".join(rows)]


def test_a_larger_table_is_split_at_rows_below_its_head() -> None:
    rows = ["| Plan | Days |", *(f"| P{at} | {at} |" for at in range(12))]
    text, chunks = cut([Block(BlockKind.TABLE, "\n".join(rows), ("Prices",))], count, SMALL)
    assert "\n".join(text[chunk.start : chunk.end] for chunk in chunks).split("\n") == rows
    assert [chunk.heading for chunk in chunks] == ["Prices"] + ["Prices > Plan | Days"] * (len(chunks) - 1)


def test_a_larger_list_is_split_at_items() -> None:
    items = [f"- item {at}\n  more of it here" for at in range(8)]
    assert all(part.startswith("- item") for part in texts([Block(BlockKind.LIST, "\n".join(items))]))


def test_a_document_has_a_limited_number_of_chunks() -> None:
    limits = ChunkLimits(max_chunks=3)
    rows = [paragraph("Yes.", f"Question {number}") for number in range(4)]
    assert len(cut(rows[:3], count, limits)[1]) == 3
    with pytest.raises(TooManyChunks):
        cut(rows, count, limits)
    with pytest.raises(TooManyChunks):  # parts of one block
        cut([paragraph("word " * 2000)], count, limits)
