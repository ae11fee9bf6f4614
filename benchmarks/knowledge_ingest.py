"""Measures how fast documents are read, and what replies lose meanwhile.

    .venv/bin/python -m benchmarks.knowledge_ingest parsing               # 10,000 documents on each database: hours
    .venv/bin/python -m benchmarks.knowledge_ingest parsing --scale 0.01  # a hundred
    .venv/bin/python -m benchmarks.knowledge_ingest parsing-loss encoding-loss --rounds 10

``parsing`` adds generated Markdown documents of 20 chunks and reads them as a server does: each in a process of its
own, then into the database. PostgreSQL is a private server with default settings. The losses are those of SmolLM2's
decode of four replies at once, without and with the work in the background, in turns of a few seconds; medians. Writes
JSON to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from app.domain.ids import LOCAL_USER_ID
from app.knowledge.ingest import Ingest
from app.services.knowledge import TOKENIZER
from app.store.db.database import Database
from app.store.knowledge.documents import Documents
from app.store.knowledge.reading import ReadingQueue
from app.store.maintenance.migrate import migrate
from benchmarks import machine
from benchmarks.databases import databases
from benchmarks.result_files import RESULTS, write_result
from engine import Engine, EngineSettings, SamplingParams, TextRole
from testing.minilm import fetch_minilm
from testing.smollm2 import fetch_smollm2

DOCUMENTS, SECTIONS, WORDS_OF_SECTION = 10_000, 20, 190
PARTS = ("parsing", "parsing-loss", "encoding-loss")
KINDS = ("sqlite", "postgresql")
REPLIES, SETTLE_SECONDS = 4, 0.5
LARGE_SECTIONS, LARGE_DOCUMENTS = 4000, 8  # of documents that take longer to read than a round
ENCODED_AT_ONCE = 4
COMMON = "the of and to in is for that with you it on as are this be from or by your"
RARE = (
    "refund invoice account server message search upload window printer customer policy install parcel warranty order"
)
WORDS = f"{COMMON} {RARE}".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the documents")
    parser.add_argument("--databases", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, default=10, help="of each way, for the losses")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round: more than a busy encoder waits")
    parser.add_argument("--label", default="knowledge-ingest")
    given = parser.parse_args()
    parts = given.parts or PARTS
    results: dict[str, Any] = {"machine": machine.describe()}
    with tempfile.TemporaryDirectory() as folder:
        if "parsing" in parts:
            with databases(list(given.databases), Path(folder)) as made:
                results["parsing"] = {
                    kind: asyncio.run(measure_parsing(make("parsing"), round(DOCUMENTS * given.scale)))
                    for kind, make in made.items()
                }
        if "parsing-loss" in parts:
            numbers = itertools.count()
            results["parsing_loss"] = asyncio.run(
                measure_loss(given.rounds, given.seconds, lambda _: parsing(f"sqlite:///{folder}/{next(numbers)}.db"))
            )
        if "encoding-loss" in parts:
            results["encoding_loss"] = asyncio.run(
                measure_loss(given.rounds, given.seconds, encoding, encoder=str(fetch_minilm()))
            )
    print(json.dumps(results, indent=2))
    file = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{given.label}.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    write_result(before | results, given.label, file)


async def measure_parsing(url: str, count: int) -> dict[str, float]:
    """Adds documents, and reads them all."""
    migrate(url)
    database = Database(url)
    documents, ingest = Documents(database), Ingest(ReadingQueue(database, "benchmark"), TOKENIZER)
    texts = [make_document(number, SECTIONS).encode() for number in range(count)]
    started = perf_counter()
    for number, text in enumerate(texts):
        await documents.add(LOCAL_USER_ID, None, f"{number}.md", text, kind="markdown")
    adding, started = perf_counter() - started, perf_counter()
    while await ingest.read_next():
        pass
    reading = perf_counter() - started
    page = await documents.page(LOCAL_USER_ID, limit=count)
    await database.close()
    assert {one.state for one in page.items} == {"ready"}
    chunks = sum(one.chunks for one in page.items)
    return {
        "documents": count,
        "chunks": chunks,
        "megabytes": sum(map(len, texts)) / 1e6,
        "added_per_second": count / adding,
        "documents_per_second": count / reading,
        "chunks_per_second": chunks / reading,
    }


Work = Callable[[Engine], AbstractAsyncContextManager[Callable[[], int]]]
"""Work in the background while it is entered. Yields what counts the chunks that are done."""


async def measure_loss(rounds: int, seconds: float, work: Work, **settings: Any) -> dict[str, Any]:
    """Decodes in turns without and with the work in the background."""
    speeds: dict[str, list[float]] = {"without": [], "with": []}
    done = 0
    async with Engine(EngineSettings(model=str(fetch_smollm2()), **settings)) as engine:
        await decode(engine, 1.0)  # warms up
        for _ in range(rounds):
            speeds["without"].append(await decode(engine, seconds))
            async with work(engine) as count:
                before = count()
                speeds["with"].append(await decode(engine, seconds))
                done += count() - before
    without, with_work = median(speeds["without"]), median(speeds["with"])
    pairs = [1 - b / a for a, b in zip(speeds["without"], speeds["with"], strict=True)]
    return {
        "replies": REPLIES,
        "tokens_per_second": without,
        "tokens_per_second_meanwhile": with_work,
        "loss": 1 - with_work / without,
        "median_loss_of_pairs": median(pairs),
        **({"chunks_meanwhile": done} if done else {}),
        "rounds": speeds,
    }


async def decode(engine: Engine, seconds: float) -> float:
    """Decodes replies for a while; returns the tokens per second of all of them, without what starts them."""
    tokens, counts = 0, False
    params = SamplingParams(max_tokens=1000, ignore_eos=True, temperature=0.0)

    async def reply(number: int) -> None:
        nonlocal tokens
        async for delta in engine.complete(f"Story {number}:", params):
            tokens += delta.num_tokens if counts else 0

    replies = [asyncio.create_task(reply(number)) for number in range(REPLIES)]
    await asyncio.sleep(SETTLE_SECONDS)
    counts, started = True, perf_counter()
    await asyncio.sleep(seconds)
    speed = tokens / (perf_counter() - started)
    for one in replies:
        one.cancel()
    await asyncio.gather(*replies, return_exceptions=True)
    return speed


@asynccontextmanager
async def parsing(url: str) -> AsyncIterator[Callable[[], int]]:
    """A server's reader, at more large documents than can be read meanwhile, and at small ones before them.

    Args:
        url: of a SQLite database.
    """
    migrate(url)
    database = Database(url)
    documents, ingest = Documents(database), Ingest(ReadingQueue(database, "benchmark"), TOKENIZER)
    sizes = [*[SECTIONS] * 8, *[LARGE_SECTIONS] * LARGE_DOCUMENTS]
    for number, sections in enumerate(sizes):
        text = make_document(random.randrange(2**30), sections).encode()
        await documents.add(LOCAL_USER_ID, None, f"{number}.md", text, kind="markdown")
    ingest.start()
    await asyncio.sleep(SETTLE_SECONDS)  # the process has begun
    try:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as reading:
            yield lambda: int(reading.execute("SELECT count(*) FROM kb_chunk").fetchone()[0])
    finally:
        await ingest.close()
        await database.close()


@asynccontextmanager
async def encoding(engine: Engine) -> AsyncIterator[Callable[[], int]]:
    """The background pass of the search by meaning, with more chunks than can be encoded meanwhile."""
    encoder, done = engine.encoder, 0
    assert encoder is not None
    chunks = make_document(0, ENCODED_AT_ONCE).split("\n\n## ")[1:]

    async def encode() -> None:
        nonlocal done
        while True:
            result = await encoder.embed(chunks, role=TextRole.DOCUMENT, background=True)
            done += len(result.vectors)

    task = asyncio.create_task(encode())
    await asyncio.sleep(SETTLE_SECONDS)
    try:
        yield lambda: done
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make_document(number: int, sections: int) -> str:
    """Returns a Markdown document of sections of about 210 tokens: each becomes a chunk."""
    noise = random.Random(number)

    def sentence() -> str:
        words = noise.choices(WORDS, k=noise.randint(8, 16))
        return f"{' '.join(words).capitalize()}."

    parts = [f"# Document {number}"]
    for section in range(sections):
        sentences = [sentence() for _ in range(WORDS_OF_SECTION // 12)]
        parts.append(f"## Section {section} of {number}\n\n{' '.join(sentences)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
