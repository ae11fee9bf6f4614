"""Measures the time to the first token of replies with sources: through a real server, over HTTP, one user at a time.

    .venv/bin/python -m benchmarks.knowledge_answers
    .venv/bin/python -m benchmarks.knowledge_answers --questions 20 --options --encoder FOLDER

SmolLM2 135M answers from generated documents, as large models do by default. Each question is asked in four ways:
without sources; with them, whose passages no prompt has had before (cold); with them once more in a new chat (warm: the
prefix cache has the prompt); and a follow-up in that chat. The time counts from sending the message. Writes JSON to
``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.knowledge_ingest import make_document
from benchmarks.live.asked_turns import add_documents, ask, signed_in
from benchmarks.live.server import LiveServer
from benchmarks.quantiles import quantile
from benchmarks.result_files import write_result
from testing.smollm2 import fetch_smollm2

SECTIONS = 8  # of a document: more than a reply is given
WAYS = ("without", "cold", "warm", "follow_up")
MAX_REPLY_TOKENS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further flags of deskmate serve")
    given = parser.parse_args()
    options = ["--model", str(fetch_smollm2()), "--knowledge-min-parameters", "0", *given.options]
    with tempfile.TemporaryDirectory() as folder, LiveServer(Path(folder), options) as server:
        found = asyncio.run(measure(server, given.questions))
    results = {"machine": machine.describe(), "options": given.options, "questions": given.questions, **found}
    print(json.dumps(results, indent=2))
    write_result(results, "knowledge-answers")


async def measure(server: LiveServer, questions: int) -> dict[str, Any]:
    """Asks the questions in turns of all ways, after one that warms up."""
    async with signed_in(server) as http:
        topics = [f"zq{random.Random(number).randrange(10**6)}x" for number in range(questions + 1)]
        texts = [
            make_document(number, SECTIONS).replace("## Section", f"## Product {topic}, section")
            for number, topic in enumerate(topics)
        ]
        collection = await add_documents(
            http, [(f"{topic}.md", text.encode()) for topic, text in zip(topics, texts, strict=True)]
        )
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        tokens: dict[str, list[int]] = {way: [] for way in WAYS}
        cached: dict[str, list[int]] = {way: [] for way in WAYS}
        for number, topic in enumerate(topics):
            chat: str | None = None
            for way in WAYS:
                body: dict[str, Any] = {"text": f"What is the warranty of product {topic}?"}
                if way == "follow_up":
                    body = {"text": f"And who pays for the delivery of {topic}?", "conversation_id": chat}
                else:
                    body["settings"] = {"max_tokens": MAX_REPLY_TOKENS, "temperature": 0}
                    body["collections"] = [] if way == "without" else [collection]
                asked = await ask(http, body)
                chat, stats = asked.conversation_id, asked.reply["stats"]
                if number:
                    times[way].append(1000 * asked.first_text_s)
                    tokens[way].append(stats["prompt_tokens"])
                    cached[way].append(stats["cached_prompt_tokens"] or 0)
    return {
        way: {
            "first_token_p50_ms": quantile(times[way], 0.5),
            "first_token_p95_ms": quantile(times[way], 0.95),
            "prompt_tokens": quantile(tokens[way], 0.5),
            "cached_prompt_tokens": quantile(cached[way], 0.5),
        }
        for way in WAYS
    }


if __name__ == "__main__":
    main()
