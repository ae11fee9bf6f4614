"""``deskmate kb eval``: how good the search is on a file of questions, as a table by each way to search."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from app.cli.console import StageProgress
from app.cli.engines import make_engine, with_found_model
from app.cli.kb_documents import counted
from app.domain.ids import LOCAL_USER_ID
from app.domain.knowledge import Passage, SearchWay
from app.errors import InvalidInput, StartupError
from app.knowledge.dense_search import DenseSearch, index_in
from app.knowledge.evaluation import Find, Outcome, Scores, ask, ask_rewritten, format_table, missed, score
from app.knowledge.hybrid_search import HybridSearch
from app.knowledge.questions import Question, read_questions
from app.models.folders import GUIDE
from app.services.knowledge import make_reranker, make_rewriter, search_thesaurus
from app.settings import AppSettings
from app.store.db.database import Database
from app.store.knowledge.chunk_vectors import ChunkVectors
from app.store.knowledge.concepts import Thesaurus
from app.store.knowledge.search import ChunkSearch
from engine import ChatEngine, EngineSettings

MISSED_DEPTH = 3
REWRITTEN = "rewritten"
RERANKED = "reranked"


async def evaluate(
    database: Database,
    app: AppSettings,
    settings: EngineSettings,
    file: Path,
    *,
    collection_id: str | None,
    half: str | None = None,
    way: SearchWay | None = None,
    rewrite: bool = False,
    rerank: int = 0,
    show_missed: bool = False,
) -> list[str]:
    """Asks the questions of a file and returns the lines to print.

    Args:
        settings: name the encoder, without which only words are searched. The chunks that have no vector get one.
        collection_id: where to search; None is every collection.
        way: None is every way that there is.
        rewrite: the last way once more, with the questions that the model makes of follow-ups.
        rerank: passages of the last way that the model sorts anew, as one more line of the table; 0: none.

    Raises:
        InvalidInput: the file cannot be read.
        StartupError: a line is no question, no question is a follow-up to rewrite, a way needs an encoder and none is
            configured, or the model that is to rerank runs on another server.
        EngineError: the encoder or the model cannot be loaded, or the model cannot score passages.
    """
    questions = _read(file, half)
    ways = [way] if way is not None else list(SearchWay) if settings.encoder is not None else [SearchWay.TEXT]
    needs_encoder = ways != [SearchWay.TEXT]
    if needs_encoder and settings.encoder is None:
        raise StartupError(f"Searching by {ways[0].value} needs an encoder. Set ENGINE_ENCODER, or use --way text.")
    if rewrite and not any(question.before for question in questions):
        raise StartupError(
            f"No question of {file} is a follow-up, so there is nothing to rewrite. Give one the messages and replies "
            'before it: "before": [["message", "reply"]].'
        )
    needs_model = rewrite or rerank > 0
    with StageProgress() as progress:
        if needs_model:
            settings = with_found_model(app, settings, progress)
        elif not settings.remote_url:  # the encoder alone
            settings = settings.model_copy(update={"model": str(GUIDE)})
        async with make_engine(settings, progress) if needs_encoder or needs_model else nullcontext() as engine:
            search = await _search(database, search_thesaurus(app), engine if needs_encoder else None, progress)
            collections = None if collection_id is None else [collection_id]
            outcomes: dict[str, list[Outcome]] = {}
            notes: list[str] = []
            for one in ways:
                progress(f"Asking {counted(len(questions), 'question')} by {one.value}", 0.0)

                async def find(text: str, limit: int, one: SearchWay) -> Sequence[Passage]:
                    return await search.search(LOCAL_USER_ID, text, collections=collections, limit=limit, way=one)

                outcomes[one.value] = await ask(questions, functools.partial(find, one=one))
            find_last = functools.partial(find, one=ways[-1])
            if rewrite and engine is not None:
                progress(f"Asking {counted(len(questions), 'question')}, rewritten by {engine.info.name}", 0.0)
                rewriter = make_rewriter(engine)
                outcomes[REWRITTEN] = await ask_rewritten(
                    questions, find_last, lambda question: rewriter.rewrite(question.text, question.before)
                )
                notes += ["", f"{REWRITTEN}: by {ways[-1].value}, follow-ups as questions of {engine.info.name}"]
            if rerank and engine is not None:
                progress(f"Asking {counted(len(questions), 'question')}, reranked by {engine.info.name}", 0.0)
                outcomes[RERANKED] = await ask(questions, _reranked(engine, find_last, rerank))
                sorting = f"the first {rerank} passages by {ways[-1].value}, sorted by {engine.info.name}"
                notes += ["", f"{RERANKED}: {sorting}"]
    scores: dict[str, Scores] = {name: score(found) for name, found in outcomes.items()}
    lines = [*format_table(scores).splitlines(), *notes]
    if show_missed:
        for name, found in outcomes.items():
            unanswered = [f"  {outcome.rank or '-':>2}  {outcome.question.text}" for outcome in missed(found)]
            title = f"Not answered by the first {MISSED_DEPTH} passages, by {name}:"
            lines += ["", title, *unanswered] if unanswered else ["", f"{title} none"]
    return lines


def _reranked(engine: ChatEngine, find: Find, count: int) -> Find:
    """A search whose first ``count`` passages the model sorts, however long that takes."""
    reranker = make_reranker(engine)

    async def find_reranked(text: str, limit: int) -> Sequence[Passage]:
        return (await reranker.sort(text, await find(text, max(limit, count)), count=count))[:limit]

    return find_reranked


async def _search(
    database: Database, thesaurus: Thesaurus, engine: ChatEngine | None, progress: StageProgress
) -> HybridSearch:
    """A search whose index has a vector of every chunk."""
    vectors = ChunkVectors(database)
    encoder = engine.encoder if engine is not None else None
    dense = DenseSearch(lambda: encoder, vectors, index_in(database))
    if encoder is not None:
        waiting = await vectors.count_unencoded((await encoder.describe()).fingerprint)
        encoded = 0

        def report(count: int) -> None:
            nonlocal encoded
            encoded += count
            progress("Encoding the chunks that have no vector", min(encoded / max(waiting, 1), 1.0))

        report(0)
        while not await dense.catch_up(report):
            pass
    return HybridSearch(ChunkSearch(database, thesaurus), dense)


def _read(file: Path, half: str | None) -> list[Question]:
    try:
        return read_questions(file.read_text(encoding="utf-8"), half=half)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidInput(f"{file} cannot be read: {reason}.") from error
