"""Samples the rows of a computed step. A request that cannot be sampled fails alone, not the whole step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from torch import Tensor

from engine.errors import EngineError, LogitsError
from engine.execution.fault_isolation import as_request_error, find_failing_rows
from engine.execution.submission import Submission
from engine.outputs import TokenLogprobs
from engine.sampling.beam_search import Candidates
from engine.sampling.grammar_masks import GrammarMasks
from engine.sampling.logprobs import Scores, named_scores, score
from engine.sampling.sampler import Sampler, SamplingRow
from engine.scheduling.request import Request
from engine.scheduling.step_plan import StepPlan
from engine.text.vocabulary import Vocabulary


class SampledRows(NamedTuple):
    """The outcome of sampling a step."""

    tokens: Mapping[str, int]  #: by request id; none for the requests of failed streams
    logprobs: Mapping[str, TokenLogprobs]  #: of the sampled token, by id of the requests that asked for them
    candidates: Mapping[str, Candidates]  #: of beams, by request id
    failures: Mapping[str, EngineError]  #: by stream id; the siblings of a failed reply fail with it


class StepSampler:
    """Samples steps and computes their log-probabilities.

    Args:
        submissions: the replies in flight, by request id. The output processor adds and removes them.
        vocabulary: names the tokens in log-probabilities.
        sampler: samples from logits.
    """

    def __init__(self, submissions: Mapping[str, Submission], vocabulary: Vocabulary, sampler: Sampler) -> None:
        self._submissions = submissions
        self._vocabulary = vocabulary
        self.sampler = sampler
        self._masks = GrammarMasks()

    def sampling_row(self, request: Request) -> SamplingRow:
        """Returns the sampling state of a request in flight."""
        return self._submissions[request.id].sampling

    def stream_id(self, request_id: str) -> str:
        """Returns the stream to which a request in flight belongs."""
        return self._submissions[request_id].stream_id

    def computing_masks(self, plan: StepPlan) -> AbstractContextManager[None]:
        """Computes what the replies' grammars allow next, beside the block under ``with``: the forward pass."""
        return self._masks.computed_beside([self._submissions[id_].sampling for id_, _row in _sampled_ids(plan)])

    def begin_masks(self, rows: Sequence[SamplingRow]) -> Callable[[], None]:
        """Begins to compute what these rows' grammars allow next; returns a function that waits until it is done."""
        return self._masks.begin(rows)

    def sample(self, plan: StepPlan, logits: Tensor) -> SampledRows:
        """Samples the next token of each sampling request, and of its forks.

        Args:
            logits: ``[len(plan.sampling), vocab_size]``.

        Raises:
            Exception: no request is to blame, see :func:`find_failing_rows`.
        """
        sampled = _sampled_ids(plan)
        ids = [id_ for id_, _row in sampled]
        if len(ids) > len(plan.sampling):
            logits = logits[[row for _id, row in sampled]]
        failures: dict[str, EngineError] = {}
        while ids:
            sampling_rows = [self._submissions[id_].sampling for id_ in ids]
            try:
                tokens, scores = self._sample_rows(logits, ids, sampling_rows)
                candidates = {id_: scores.pop(id_).top for id_ in ids if self._submissions[id_].request.is_beam}
                logprobs = {id_: named_scores(self._vocabulary, score) for id_, score in scores.items()}
                return SampledRows(dict(zip(ids, tokens, strict=True)), logprobs, candidates, failures)
            except LogitsError as error:
                failures |= dict.fromkeys(map(self.stream_id, error.request_ids), error)
            except Exception as error:
                alone = partial(self._sample_alone, logits, ids, sampling_rows)
                for index, cause in find_failing_rows(error, logits, alone).items():
                    stream_id = self.stream_id(ids[index])
                    if stream_id not in failures:
                        failures[stream_id] = as_request_error(stream_id, cause)
            kept = [index for index, id_ in enumerate(ids) if self.stream_id(id_) not in failures]
            ids = [ids[index] for index in kept]
            logits = logits[kept]
        return SampledRows({}, {}, {}, failures)

    def score_prompts(self, plan: StepPlan, logits: Tensor) -> dict[str, list[TokenLogprobs]]:
        """Computes the log-probabilities of a step's prompt tokens, from the logits of the tokens before them.

        Args:
            logits: ``[n, vocab_size]``, one row for each of the ``n`` positions that the plan's chunks score.

        Returns:
            The scores of the newly computed prompt tokens, by request id.
        """
        chunks = [chunk for chunk in plan.chunks if chunk.scored]
        tokens: list[int] = []
        counts: list[int] = []
        for chunk in chunks:
            tokens += chunk.request.prompt_token_ids[chunk.scored.start + 1 : chunk.scored.stop + 1]
            counts += [chunk.request.params.prompt_logprobs or 0] * len(chunk.scored)
        scored = iter(score(logits, tokens, counts))
        by_request: dict[str, list[TokenLogprobs]] = {}
        start = 0
        for chunk in chunks:
            end = start + len(chunk.scored)
            scores = [named_scores(self._vocabulary, next(scored)) for _ in chunk.scored]
            if (inspector := self._submissions[chunk.request.id].inspector) is not None:
                inspections = inspector.inspect(logits[start:end], tokens[start:end])
                scores = [replace(one, inspection=how) for one, how in zip(scores, inspections, strict=True)]
            by_request[chunk.request.id] = scores
            start = end
        return by_request

    def score_tokens(self, requests: Sequence[Request], tokens: Sequence[int], logits: Tensor) -> list[TokenLogprobs]:
        """Computes the log-probabilities that requests asked for, of their sampled tokens.

        Args:
            logits: ``[len(requests), vocab_size]``.
        """
        scored = score(logits, tokens, [request.params.logprobs or 0 for request in requests])
        return [named_scores(self._vocabulary, scores) for scores in scored]

    def _sample_rows(
        self, logits: Tensor, ids: Sequence[str], rows: Sequence[SamplingRow]
    ) -> tuple[list[int], dict[str, Scores]]:
        tokens = self.sampler.sample(logits, rows)
        return tokens, self._score(logits, ids, tokens)

    def _sample_alone(self, logits: Tensor, ids: Sequence[str], rows: Sequence[SamplingRow], index: int) -> None:
        one = slice(index, index + 1)
        self._sample_rows(logits[one], ids[one], rows[one])

    def _score(self, logits: Tensor, ids: Sequence[str], tokens: Sequence[int]) -> dict[str, Scores]:
        """Computes the log-probabilities of sampled tokens, only for the requests that asked for them."""
        wanted = [
            (index, id_, count)
            for index, id_ in enumerate(ids)
            if (count := self._submissions[id_].request.params.logprobs) is not None
        ]
        if not wanted:
            return {}
        rows = [index for index, _, _ in wanted]
        scored = score(logits[rows], [tokens[index] for index in rows], [count for _, _, count in wanted])
        return {id_: scores for (_, id_, _), scores in zip(wanted, scored, strict=True)}


def _sampled_ids(plan: StepPlan) -> list[tuple[str, int]]:
    """Returns the ids of the requests that a plan samples for, and the row of logits of each.

    Forks are sampled from the logits of the prompt they share.
    """
    return [
        (one.id, row)
        for row, chunk in enumerate(plan.sampling)
        for one in (chunk.request, *(() if chunk.request.is_beam else chunk.request.forks))
    ]
