"""Files for a message: read into text for their user, or refused with a sentence. Nothing is stored before."""

from __future__ import annotations

import io
import zipfile

import pytest

from app.domain.attached_files import IS_DATA, file_block, first_file_name, without_files
from tests.app.desk import Desk
from tests.app.knowledge.readers import files

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def bomb() -> bytes:
    """A DOCX that unpacks to more than a document may have."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", b" " * (300 * 2**20))
    return packed.getvalue()


async def test_a_file_becomes_a_part_of_the_message_and_only_its_words_the_title(here: Desk) -> None:
    ben = here.clients["ben"]
    code = "def f():\n\n\n    return '<file>'\n"
    read = (await ben.post("/api/files", files={"file": ("../a & <b>.py", code.encode())})).json()
    assert (read["name"], read["size"]) == ("a & <b>.py", len(code))
    assert IS_DATA in read["block"]
    assert "def f():\n\n\n    return '<file>'" in read["block"], "code keeps its lines"
    assert (await ben.get("/api/conversations")).json()["items"] == [], "nothing is stored"
    for text, title in (("What is this?", "What is this?"), ("", "a & <b>.py")):
        turn = (await ben.post("/api/turns", json={"text": f"{text}\n\n{read['block']}"})).json()
        shown = (await ben.get(f"/api/conversations/{turn['conversation_id']}")).json()
        assert shown["title"] == title
        assert "return '<file>'" in here.live.engine.calls[-1][0][-1]["content"]


def test_a_file_that_holds_the_marks_of_another_ends_where_it_ends() -> None:
    inner = '<file name="x" size="1" tokens="1" mark="00000000">\nhello\n</file 00000000>'
    outer = f'<file name="a &quot;b&quot;" size="9" tokens="9" mark="12345678">\n{IS_DATA}\n\n{inner}\n</file 12345678>'
    assert without_files(f"words\n\n{outer}") == "words"
    assert first_file_name(outer) == 'a "b"'
    assert without_files("a <file > of my own") == "a <file > of my own"


@pytest.mark.parametrize(
    "text",
    [
        "<file " + "\n" * 2_000_000,
        '<file name="a" size="1" tokens="1" mark="12345678">\n' * 60_000,
        "\n</file 12345678>" * 120_000 + '<file name="a" size="1" tokens="1" mark="12345678">\n',
    ],
    ids=["lines", "opened", "closed"],
)
def test_marks_without_an_end_are_words_and_found_in_one_pass(text: str) -> None:
    # All other users would wait meanwhile. A search from each mark to the text's end takes longer than a test may.
    assert without_files(text) == text
    assert first_file_name(text) == ""
    assert without_files(f"{text}\n\n{file_block('b', 1, 1, 'x')}\n") == text.strip()
    assert first_file_name(f"{text}\n\n{file_block('b', 1, 1, 'x')}") == "b"


@pytest.mark.parametrize(
    ("data", "name", "status", "said"),
    [
        (PNG, "a.png", 422, "is a picture, and the model reads text only"),
        (PNG, "a.txt", 422, "is a picture"),
        (b"plain", "a.pdf", 422, "is not a PDF file, though its name says so"),
        (b"\x00\x01\x02", "a.txt", 422, "is no text"),
        (b"", "a.txt", 422, "is empty"),
        (b"  \n ", "a.md", 422, "has no text"),
        (files.pdf("Hello", password="secret"), "a.pdf", 422, "is encrypted"),
        (b"word " * 50_000, "a.txt", 413, "a message may have 200,000"),
        (b"abcd" * 2000, "a.txt", 413, "the model reads at most 4,096"),
    ],
)
async def test_what_cannot_be_read_is_refused_with_a_sentence(
    here: Desk, data: bytes, name: str, status: int, said: str
) -> None:
    refused = await here.clients["ben"].post("/api/files", files={"file": (name, data)})
    assert refused.status_code == status, refused.text
    assert said in refused.json()["error"]["message"]


async def test_a_bomb_is_refused(here: Desk) -> None:
    refused = await here.clients["ben"].post("/api/files", files={"file": ("a.docx", bomb())})
    assert refused.status_code in (413, 422), refused.text
    assert "a.docx" in refused.json()["error"]["message"]


async def test_a_pdf_is_read_and_a_viewer_attaches_nothing(here: Desk) -> None:
    given = {"file": ("a.pdf", files.pdf("Hello desk", "Bye"))}
    read = (await here.clients["ben"].post("/api/files", files=given)).json()
    assert "Hello desk" in read["block"]
    assert read["tokens"] > 0
    assert (await here.clients["cyd"].post("/api/files", files=given)).status_code == 403
