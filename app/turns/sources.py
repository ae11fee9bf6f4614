"""Finds the passages that a reply rests on, once, before its prompt is rendered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from app.domain.citations import citation_pattern
from app.domain.knowledge import MAX_QUERY_CHARS, Passage
from app.domain.prompting import PathMessage
from app.domain.sources import SourcesPrompt, show_source
from app.errors import NotFound
from app.knowledge.query_windows import Window, best_of, is_short, windows_of
from app.knowledge.reranking import Reranker
from app.knowledge.rewriting import QuestionRewriter
from app.settings import AppSettings
from app.turns.admission import caller_of
from app.turns.engine_requests import count_tokens
from engine import ChatEngine, StructuredOutput, StructureKind

_MAX_CONTEXT_SHARE = 4  # sources take at most this part of the model's context: a quarter
_MIN_CHARS = 40  # the best source is not cut below them
MAX_TOKEN_COUNTS = 1000
"""Sources whose tokens are remembered: some MiB. Above it, the one that was not used for longest is forgotten."""

NO_DOCUMENTS = "This server has no documents to search. Turn off the sources of this chat."
GONE = (
    "A collection that this chat uses as a source was deleted, or you may no longer use it. Remove it below the "
    "message box, or untick it under Sources, then try again."
)


class Retriever(Protocol):
    """Searches documents for passages, and knows who may use the documents."""

    async def search(
        self, user_id: str, query: str, *, collections: Sequence[str] | None, limit: int
    ) -> Sequence[Passage]:
        """Returns the passages that match best, best first, of these collections; None: of all the user may use.

        Raises:
            NotFound: a collection is missing, or the user may not use it.
        """
        ...

    async def usable_documents(self, user_id: str, document_ids: Collection[str]) -> set[str]:
        """Returns those of the documents that exist, and that the user may use."""
        ...

    async def closed_documents(self, user_id: str, document_ids: Collection[str]) -> set[str]:
        """Returns those of the documents that exist, and that the user may not use."""
        ...


class Sources:
    """The sources of replies: what a search finds, within the limits of the settings.

    Args:
        retriever: None: the server has no documents.
        prompt: shows sources to the model.
        reranker: sorts what is found; None leaves the search's order.
        rewriter: makes questions of follow-ups; None searches for the messages as they are.
    """

    def __init__(
        self,
        retriever: Retriever | None,
        engine: ChatEngine,
        settings: AppSettings,
        prompt: SourcesPrompt,
        *,
        reranker: Reranker | None = None,
        rewriter: QuestionRewriter | None = None,
    ) -> None:
        self.retriever = retriever
        self.prompt = prompt
        self._reranker = reranker
        self._rewriter = rewriter
        self._engine = engine
        self._settings = settings
        self._token_counts: dict[tuple[str, str], int] = {}  # by the model's name and the text

    async def find(
        self, user_id: str, collections: Sequence[str], text: str, before: Sequence[tuple[str, str]] = ()
    ) -> tuple[Passage, ...]:
        """Returns the sources for a reply to ``text``, best first; none without collections, or if nothing matches.

        What does not fit the rest of the token budget is left out, and if the best one is larger than all of it, its
        end is. Where the model is too small, the best one stays whole: the model does not read it.

        Args:
            before: the messages and replies before ``text``, oldest first, without the sources of the replies.

        Raises:
            NotFound: a collection is missing, or the user may not use it.
        """
        if not collections:
            return ()
        if self.retriever is None:
            raise NotFound(NO_DOCUMENTS)
        found = await self._search(self.retriever, user_id, collections, text, before)
        budget = self.max_tokens
        sources: list[Passage] = []
        for passage in found:
            tokens = await self._count_tokens(show_source(len(sources) + 1, passage))
            if tokens <= budget:
                sources.append(passage)
            elif not sources:
                sources.append(passage if self.is_model_too_small else await self._shortened(passage, budget))
            else:
                continue  # a later one may be shorter
            budget -= tokens
        return tuple(sources)

    async def usable(
        self, user_id: str, path: tuple[PathMessage, ...], own: tuple[Passage, ...] = ()
    ) -> tuple[tuple[PathMessage, ...], tuple[Passage, ...]]:
        """Returns a conversation's messages, and a reply's own sources, as the model may be given them now.

        Sources whose document was removed, or which the user may no longer use, lose their words and keep their
        numbers. Without any sources this asks nothing.
        """
        documents = {source.document_id for source in own}
        documents.update(source.document_id for message in path for source in message.sources)
        if not documents:
            return path, own
        usable = await self.retriever.usable_documents(user_id, documents) if self.retriever is not None else set[str]()
        if documents <= usable:
            return path, own

        def opened(sources: tuple[Passage, ...]) -> tuple[Passage, ...]:
            return tuple(source if source.document_id in usable else source.without_words() for source in sources)

        messages = (replace(one, sources=opened(one.sources)) if one.sources else one for one in path)
        return tuple(messages), opened(own)

    async def shown(self, user_id: str, sources: tuple[Passage, ...]) -> tuple[Passage, ...]:
        """Returns the sources of a stored reply as its user may see them now."""
        documents = {source.document_id for source in sources}
        if not documents or self.retriever is None:
            return sources
        closed = await self.retriever.closed_documents(user_id, documents)
        return tuple(source.without_words() if source.document_id in closed else source for source in sources)

    async def _search(
        self,
        retriever: Retriever,
        user_id: str,
        collections: Sequence[str],
        text: str,
        before: Sequence[tuple[str, str]],
    ) -> list[Passage]:
        """Returns the passages above the threshold, best first, at most as many as a reply is given."""
        caller = caller_of(user_id, accounts=self._settings.accounts)
        count = self._settings.knowledge_passages
        candidates = max(count, self._settings.knowledge_rerank) if self._reranker else count

        async def search(windows: Sequence[Window]) -> list[Passage]:
            found: list[tuple[Window, Sequence[Passage]]] = []
            for window in windows:  # in turn: a user has one search at a time
                try:
                    passages = await retriever.search(user_id, window.query, collections=collections, limit=candidates)
                except NotFound as error:
                    raise NotFound(GONE) from error
                found.append((window, passages))
            best = best_of(found, limit=candidates)
            return [passage for passage in best if passage.score >= self._settings.knowledge_min_score]

        query = text
        if self._rewriter is not None:
            query = await self._rewriter.rewrite(text, before, caller=caller)
        found = await search(windows_of(query))
        if not found and query != text:
            query = text
            found = await search(windows_of(query))
        if not found and before and is_short(text):
            # "And for children?" asks with the words of the message before, behind its own: of many, the first count.
            query = f"{text} {before[-1][0]}"[:MAX_QUERY_CHARS]
            found = await search([Window(query, 1.0)])
        if self._reranker is not None:
            found = await self._reranker.rerank(query, found, count=self._settings.knowledge_rerank, caller=caller)
        return found[:count]

    async def _shortened(self, passage: Passage, budget: int) -> Passage:
        """Returns the beginning of the best passage, up to the end of a line or a word, that fits the budget.

        Of one whose title and headings alone do not fit, it returns the first words: few, but not none.
        """
        text = passage.text
        while True:
            shorter = replace(passage, text=text, end=passage.start + len(text))
            tokens = await self._count_tokens(show_source(1, shorter))
            if tokens <= budget or len(text) <= _MIN_CHARS:
                return shorter
            kept = text[: min(len(text) * budget // tokens, len(text) * 7 // 8)]
            end = max(kept.rfind("\n", len(kept) // 2), 0) or max(kept.rfind(" "), 0) or len(kept)
            text = text[: max(end, _MIN_CHARS)]

    async def _count_tokens(self, text: str) -> int:
        """Counts the tokens of a source; those of a desk's documents come again and again."""
        key = (self._engine.info.name, text)
        count = self._token_counts.pop(key, None)
        if count is None:
            count = await count_tokens(self._engine, text)
        self._token_counts[key] = count  # the last used one is the last
        if len(self._token_counts) > MAX_TOKEN_COUNTS:
            del self._token_counts[next(iter(self._token_counts))]
        return count

    @property
    def max_tokens(self) -> int:
        """Most tokens that the sources of a reply may take."""
        return min(self._settings.knowledge_tokens, self._engine.info.max_model_len // _MAX_CONTEXT_SHARE)

    @property
    def is_model_too_small(self) -> bool:
        """Whether the model is too small to answer from sources. One of unknown size is not."""
        return 0 < self._engine.info.num_parameters < self._settings.knowledge_min_parameters

    def form(self, count: int) -> StructuredOutput | None:
        """Returns the form that admits no citations but those of the sources 1 to ``count``; None without sources.

        None for a remote model, too: not every server takes a form. There, a number that names no source is text.
        """
        if not count or not self._engine.info.num_parameters:
            return None
        return StructuredOutput(StructureKind.REGEX, citation_pattern(count))
