"""Reads a CSV of questions and answers: each row is a section, its question the heading."""

from __future__ import annotations

import csv
import io
from pathlib import PurePath

from app.errors import BrokenFile
from app.knowledge.readers.blocks import BlockBuilder, BlockKind, ReadDocument
from app.knowledge.readers.kinds import decode

csv.field_size_limit(2**30)  # of a cell; the limits of a document are smaller, and say what to do
_QUESTIONS = {"question", "q", "frage"}
_ANSWERS = {"answer", "a", "antwort"}


def read(data: bytes, name: str) -> ReadDocument:
    text = decode(data, name)
    first_line = text.partition("\n")[0]
    delimiter = max(",;\t", key=first_line.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if any(map(str.strip, row))]
    except csv.Error as error:
        raise BrokenFile(f"{name} is no CSV that can be read ({error}). Save it again as CSV in UTF-8.") from error
    builder = BlockBuilder()
    if not rows:
        return builder.finish(PurePath(name).stem)
    head = [cell.strip().lower() for cell in rows[0]]
    question = next((at for at, cell in enumerate(head) if cell in _QUESTIONS), None)
    answer = next((at for at, cell in enumerate(head) if cell in _ANSWERS), None)
    if question is None or answer is None:
        if len(head) != 2:
            raise BrokenFile(
                f"{name} needs a first row with the columns question and answer. Name them and add it again."
            )
        question, answer = 0, 1
    else:
        rows = rows[1:]
    for row in rows:
        asked, answered = (row[at].strip() if at < len(row) else "" for at in (question, answer))
        builder.heading(1, asked)
        builder.add(BlockKind.PARAGRAPH, answered)
    return builder.finish(PurePath(name).stem)
