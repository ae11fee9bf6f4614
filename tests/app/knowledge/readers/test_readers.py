from __future__ import annotations

import random
import subprocess
import sys
from contextlib import suppress
from xml.etree import ElementTree

import pytest

from app.errors import AppError, BrokenFile, TooLarge
from app.knowledge.readers import html, read_document
from app.knowledge.readers.blocks import MAX_HEADING_CHARS, Block, BlockBuilder, BlockKind, ReadingLimits
from tests.app.knowledge.readers import files


def test_markdown_keeps_structure() -> None:
    document = read_document(files.MARKDOWN, "shipping.md")
    assert document.title == "Shipping"
    times = ("Where we ship", "Times")
    assert document.blocks == [
        Block(BlockKind.PARAGRAPH, "Everywhere.", ("Where we ship",)),
        Block(BlockKind.LIST, "- Europe: 3 days\n  or 4\n- Asia: 9 days", times),
        Block(BlockKind.TABLE, "| Plan | Days |\n| --- | --- |\n| Fast | 1 |", times),
        Block(BlockKind.CODE, "# not a heading\ntrack 12", times),
        Block(BlockKind.PARAGRAPH, "Nothing here", ("Where we ship",)),
    ]


def test_html_is_read_without_its_navigation() -> None:
    document = read_document(files.HTML, "policy.html")
    assert document.title == "Returns policy"
    by_kind = {block.kind: block for block in document.blocks}
    assert by_kind[BlockKind.LIST].text == "- Print the label\n- Close the parcel"
    assert by_kind[BlockKind.LIST].headings == ("Returns policy", "How to return")
    assert by_kind[BlockKind.TABLE].text == "| Country | Days |\n| France | 30 |"
    assert any("thirty days" in block.text for block in document.blocks)
    assert not any("Shop" in block.text for block in document.blocks)


def test_a_short_html_page_is_read_too() -> None:
    document = read_document(b"<html><body><p>Open on Sunday.</p></body></html>", "hours.html")
    assert "Open on Sunday." in document.blocks[0].text


def test_plain_text_is_cut_at_empty_lines() -> None:
    document = read_document("one\r\ntwo\r\n\r\n\r\nthrée".encode("cp1252"), "notes.txt")
    assert [block.text for block in document.blocks] == ["one\ntwo", "thrée"]
    assert document.title == "notes"


def test_pdf_has_pages_and_progress() -> None:
    seen: list[float] = []
    document = read_document(files.pdf("Hello desk", "", "Bye", title="Guide"), "a.pdf", progress=seen.append)
    assert document.title == "Guide"
    assert [(block.text, block.page) for block in document.blocks] == [("Hello desk", 1), ("Bye", 3)]
    assert seen == [1 / 3, 2 / 3, 1]


def test_docx_keeps_structure() -> None:
    document = read_document(files.docx(), "returns.docx")
    assert document.title == "Returns"
    by_card = ("Refunds", "By card")
    assert document.blocks == [
        Block(BlockKind.PARAGRAPH, "A refund takes five days.", ("Refunds",)),
        Block(BlockKind.LIST, "- Keep the slip.\n- Call us.", by_card),
        Block(BlockKind.TABLE, "| Plan | Days |\n| Basic | 5 |", by_card),
    ]


def test_docx_keeps_what_was_inserted_and_what_stands_in_controls_boxes_and_inner_tables() -> None:
    document = read_document(files.rich_docx(), "terms.docx")
    terms = ("Terms",)
    assert document.blocks == [
        Block(BlockKind.PARAGRAPH, "The period is thirty\tdays.", terms),
        Block(BlockKind.PARAGRAPH, "In a control.", terms),
        Block(BlockKind.PARAGRAPH, "Name: inline control", terms),
        Block(BlockKind.PARAGRAPH, "In a box.", terms),
        Block(BlockKind.TABLE, "| Both | Both | Tall |\n| outer inner, also inner |  | Tall |", terms),
    ]


def test_docx_boxes_in_boxes_are_read_once_and_deleted_ones_not() -> None:
    document = read_document(files.docx_with_boxes(), "boxes.docx")
    assert [block.text for block in document.blocks] == [
        "Before.",
        "Outer.",
        "Inner.",
        "| Cell. In the cell's box. |",
        "After.",
    ]


def test_docx_a_cell_over_absurdly_many_columns_is_read() -> None:
    document = read_document(files.docx_with_span("999999999"), "wide.docx")
    assert document.blocks[0].text.count("wide") == 1
    assert read_document(files.docx_with_span("5000"), "wide.docx").blocks[0].text.count("wide") <= 63


def test_docx_of_a_word_in_another_language_keeps_structure() -> None:
    document = read_document(files.german_docx(), "handbuch.docx")
    assert document.title == "Handbuch"
    assert document.blocks == [
        Block(BlockKind.PARAGRAPH, "In 30 Tagen.", ("Rückgabe",)),
        Block(BlockKind.LIST, "- Porto\n- Zoll", ("Rückgabe", "Ausland")),
    ]


ARTICLE = """<!doctype html><html><head><title>Shop</title></head><body><article><h1>Returns</h1>
<p>This page says how goods are sent back to our shop, who pays for the parcel, and when the money is paid back.</p>
<blockquote>Opened goods are <b>excluded</b>. <p>Other goods are refunded.</p> After ten days.</blockquote>
<ul><li>Return costs:<ul><li>Germany: free</li><li>EU: 9 euros</li></ul></li><li>Keep the slip</li></ul>
<p>Please write to us if the parcel does not arrive within five days, or if anything in it is missing.</p>
</article></body></html>"""


def test_html_keeps_the_text_beside_blocks_and_the_levels_of_a_list() -> None:
    texts = [block.text for block in read_document(ARTICLE.encode(), "returns.html").blocks]
    at = texts.index("Opened goods are excluded.")
    assert texts[at : at + 4] == [
        "Opened goods are excluded.",
        "Other goods are refunded.",
        "After ten days.",
        "- Return costs:\n  - Germany: free\n  - EU: 9 euros\n- Keep the slip",
    ]


def test_html_keeps_the_text_of_the_body_itself() -> None:
    builder = BlockBuilder()
    html._add_mixed(builder, ElementTree.fromstring("<body>Loose <hi>bold</hi> text<p>Below.</p>after it</body>"))
    assert [block.text for block in builder.blocks] == ["Loose bold text", "Below.", "after it"]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "naïve résumé – “quoted”"),
        ("cp1252", "Die Rückgabe ist innerhalb von 30 Tagen möglich."),
        ("cp1251", "Возврат возможен в течение 30 дней после получения."),
        ("koi8_r", "Возврат возможен в течение 30 дней после получения."),
        ("cp1250", "Zwrot jest możliwy w ciągu 30 dni. Proszę odesłać paczkę w oryginalnym opakowaniu."),
        ("cp1253", "Η επιστροφή είναι δυνατή εντός 30 ημερών."),
        ("shift_jis", "保証期間は二年です。商品が破損していた場合は写真を送ってください。"),
        ("gb18030", "退货期限为三十天。如果商品损坏,请发送照片。"),
        ("euc_kr", "반품은 30일 이내에 가능합니다."),
        ("utf-16", "Größe"),
        ("utf-8-sig", "Größe"),
    ],
)
def test_text_in_encodings_that_people_have_is_read(encoding: str, text: str) -> None:
    assert read_document(text.encode(encoding), "a.txt").blocks[0].text == text


@pytest.mark.parametrize("before", [b"", b"plain ASCII for a while\n" * 20_000])
def test_the_encoding_of_a_long_text_is_guessed_by_whole_lines(before: bytes) -> None:
    lines = "".join(f"{number} 保証期間は二年です。\n" for number in range(9000))
    text = read_document(before + lines.encode("shift_jis"), "a.txt").blocks[0].text
    assert text.endswith("8999 保証期間は二年です。")
    assert "\ufffd" not in text


def test_a_wrong_byte_in_utf_8_costs_one_letter() -> None:
    data = "Überschrift und Maße".encode() + b"\xff" + " der Größe nach".encode()
    assert read_document(data, "a.txt").blocks[0].text == "Überschrift und Maße\ufffd der Größe nach"


def test_a_text_about_pdf_is_no_pdf() -> None:
    assert read_document(b"# Formats\n\nA PDF begins with %PDF-1.4 in its first line.", "a.md").title == "Formats"


def test_each_question_of_a_csv_is_a_section() -> None:
    document = read_document(files.CSV, "faq.csv")
    assert document.blocks == [
        Block(BlockKind.PARAGRAPH, "Five days.\nOr six.", ("How long; really?",)),
        Block(BlockKind.PARAGRAPH, "Only asked", ()),
    ]


def test_an_answer_without_a_question_is_not_put_below_another() -> None:
    document = read_document(b"question,answer\nWhen?,Today\n,Tomorrow\n", "faq.csv")
    assert [block.headings for block in document.blocks] == [("When?",), ()]


def test_content_decides_over_the_name() -> None:
    assert read_document(files.pdf("Hello"), "really.txt").blocks[0].page == 1
    assert read_document(files.HTML, "page.txt").title == "Returns policy"


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (files.pdf("secret", password="x"), "a.pdf", "is encrypted"),
        (files.pdf("", ""), "a.pdf", "a scan"),
        (files.pdf("text")[:200], "a.pdf", "is damaged"),
        (b"just text", "a.pdf", "is not a PDF file"),
        (b"just text", "a.docx", "is not a DOCX file"),
        (files.docx()[:900], "a.docx", "is damaged"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99, "a.doc", "old Office file"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "a.md", "is no text"),
        (b" \n \n", "a.md", "has no text"),
        (b"", "a.txt", "has no text"),
        (b"a,b,c\n1,2,3\n", "a.csv", "question and answer"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(data: bytes, name: str, words: str) -> None:
    with pytest.raises(BrokenFile, match=words) as raised:
        read_document(data, name)
    assert raised.value.message.startswith(name)


def test_limits_refuse() -> None:
    with pytest.raises(TooLarge, match="2 pages"):
        read_document(files.pdf("a", "b"), "a.pdf", limits=ReadingLimits(max_pages=1))
    bomb = files.docx_bomb(5_000_000)
    assert len(bomb) < 20_000
    with pytest.raises(TooLarge, match="unpacks to 4 MiB"):
        read_document(bomb, "a.docx", limits=ReadingLimits(max_unpacked_bytes=4_000_000))
    with pytest.raises(TooLarge, match="larger than"):
        read_document(b"abcd", "a.txt", limits=ReadingLimits(max_bytes=3))
    with pytest.raises(TooLarge, match="characters"):
        read_document(b"abcd", "a.txt", limits=ReadingLimits(max_characters=3))


def test_nesting_that_a_parser_cuts_off_is_refused() -> None:
    text = " ".join(block.text for block in read_document(files.nested_html(256), "a.html").blocks)
    assert ("thirty days" in text, "ninety days" in text) == (True, True)
    assert "Deep." in [block.text for block in read_document(files.nested_docx(120), "a.docx").blocks]
    for data, name in (
        (files.nested_html(257), "a.html"),
        (files.nested_html(20_000), "a.html"),
        (files.nested_docx(200), "a.docx"),
    ):
        with pytest.raises(TooLarge, match="256 elements inside one another"):
            read_document(data, name)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (files.MARKDOWN, "a.md"),
        (files.HTML, "a.html"),
        (files.pdf("Hello desk", "Bye"), "a.pdf"),
        (files.docx(), "a.docx"),
        (files.CSV, "a.csv"),
    ],
)
def test_broken_files_end_in_text_or_a_sentence(data: bytes, name: str) -> None:
    """A fuzz: bytes are changed, cut out and cut off; nothing but an AppError may come out."""
    chance = random.Random(28)
    for _ in range(25):
        broken = bytearray(data)
        for _ in range(chance.choice((1, 5, 50))):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        if chance.random() < 0.5:
            start = chance.randrange(len(broken))
            del broken[start : start + chance.randrange(1, 200)]
        if chance.random() < 0.3:
            del broken[chance.randrange(1, len(data)) :]
        with suppress(AppError):
            read_document(bytes(broken), name)


def test_the_server_imports_no_package_of_a_format() -> None:
    code = "import sys, app.knowledge.readers; print({'trafilatura', 'pypdf', 'docx', 'lxml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_a_database_refuses_is_left_out() -> None:
    builder = BlockBuilder()
    builder.heading(1, "a\ud800\x00")
    builder.add(BlockKind.PARAGRAPH, "b\x00\ud800")
    document = builder.finish("c\ud800")
    assert (document.title, document.blocks) == ("c?", [Block(BlockKind.PARAGRAPH, "b?", ("a?",))])


def test_a_long_heading_is_text_with_a_short_heading() -> None:
    """Each chunk has its headings: with a long one, a small file would become a thousand times as large."""
    words = " ".join(f"word{number}" for number in range(40_000))
    for name, data in (
        ("a.md", f"# Title\n\n## {words}\n\nBelow.\n\n## {words}\n"),
        ("a.csv", f"question,answer\n{words},Below.\nNext?,Other.\n"),
    ):
        read = read_document(data.encode(), name)
        assert max(len(heading) for block in read.blocks for heading in block.headings) <= MAX_HEADING_CHARS + 1
        first, second, *others = read.blocks
        assert (first.text, second.text) == (words, "Below.")
        assert first.headings == second.headings, "a row of a CSV is still one section"
        assert first.headings[-1].startswith("word0 word1 ")
        assert first.headings[-1].endswith("…")
        assert len(others) == 1
    assert read_document(b"# " + b"x" * MAX_HEADING_CHARS + b"\n\nBelow.", "a.md").blocks[0].text == "Below."
    (block, _) = read_document(b"# " + b"x" * 5000 + b"\n\nBelow.", "a.md").blocks
    assert block.headings == ("x" * MAX_HEADING_CHARS + "…",)
