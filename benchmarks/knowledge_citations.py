"""Measures how often the passage that a reply cites answers the question: citation precision.

    .venv/bin/python -m benchmarks.knowledge_citations
    .venv/bin/python -m benchmarks.knowledge_citations --options --model MODEL --encoder FOLDER

A real server answers labelled questions about the project's own pages, as a large model does by default, each in a chat
of its own. Only questions count of which the first passages that the search finds have the answer: what is measured is
the model, not the search. A citation is precise if its passage holds one of the phrases that answer the question; that
says which source was named, not whether the sentence before the number is true. ``first_passage`` is the precision of
always citing the first passage found. Writes JSON to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from app.knowledge.questions import Question, read_questions
from benchmarks import machine
from benchmarks.live.asked_turns import add_documents, ask, signed_in
from benchmarks.live.server import LiveServer
from benchmarks.result_files import write_result
from testing.own_pages import QUESTIONS, own_pages
from testing.smollm2 import fetch_smollm2

COUNT = 60
FIRST_PASSAGES = 3
"""One of them has the answer to a question that counts."""
MAX_REPLY_TOKENS = 160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=COUNT)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further flags of deskmate serve")
    given = parser.parse_args()
    options = list(given.options)
    if "--model" not in options:
        options += ["--model", str(fetch_smollm2())]
    with (
        tempfile.TemporaryDirectory() as folder,
        LiveServer(Path(folder), ["--knowledge-min-parameters", "0", *options]) as server,
    ):
        found = asyncio.run(measure(server, given.questions))
    results = {"machine": machine.describe(), "options": given.options, **found}
    print(json.dumps({name: part for name, part in results.items() if name != "replies"}, indent=2))
    write_result(results, "knowledge-citations")


async def measure(server: LiveServer, count: int) -> dict[str, Any]:
    """Asks the first ``count`` questions that the search finds an answer to."""
    async with signed_in(server) as http:
        collection = await add_documents(http, [(page.name, page.read_bytes()) for page in own_pages()])
        replies: list[dict[str, Any]] = []
        with tqdm(total=count, desc="asking", dynamic_ncols=True, leave=False) as bar:
            for question in read_questions(QUESTIONS.read_text(encoding="utf-8")):
                if len(replies) == count:
                    break
                answers = await answering(http, question)
                if any(answers):
                    settings = {"max_tokens": MAX_REPLY_TOKENS, "temperature": 0}
                    body = {"text": question.text, "settings": settings, "collections": [collection]}
                    reply = (await ask(http, body)).reply
                    replies.append(outcome(question, reply, is_first_right=answers[0]))
                    bar.update()
        return {"model": reply["model"], **summary(replies), "replies": replies}


async def answering(http: httpx.AsyncClient, question: Question) -> list[bool]:
    """Whether each of the first passages found answers the question."""
    found = await http.get("/api/kb/search", params={"q": question.text, "limit": FIRST_PASSAGES})
    found.raise_for_status()
    return [is_answered(question, passage) for passage in found.json()["passages"]]


def is_answered(question: Question, passage: Mapping[str, Any]) -> bool:
    return question.is_answered_by(f"{passage['heading']}\n{passage['text']}")


def outcome(question: Question, reply: Mapping[str, Any], *, is_first_right: bool) -> dict[str, Any]:
    """What a reply cited, and whether each citation is right."""
    return {
        "question": question.text,
        "right": [is_answered(question, citation) for citation in reply["citations"]],
        "is_first_right": is_first_right,
        "text": reply["content"],
    }


def summary(replies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of the replies."""
    cited = [one for one in replies if one["right"]]
    right = [one for reply in cited for one in reply["right"]]
    return {
        "questions": len(replies),
        "replies_that_cite": len(cited),
        "citations": len(right),
        "precision": round(sum(right) / len(right), 3) if right else None,
        "replies_with_a_right_citation": sum(any(one["right"]) for one in replies),
        "first_passage": round(sum(one["is_first_right"] for one in replies) / len(replies), 3),
    }


if __name__ == "__main__":
    main()
