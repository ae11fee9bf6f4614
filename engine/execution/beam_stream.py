"""The beams of one request: collects what each computed, and decides together how they go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.outputs import TokenLogprobs
from engine.sampling.beam_search import Beam, BeamSearch, Candidates, Choice
from engine.sampling.logprobs import named_scores
from engine.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from engine.execution.submission import Submission


@dataclass(slots=True)
class BeamStream:
    """One search and its submissions, one for each beam.

    Args:
        search: chooses the beams.
        num_replies: how many of the best sequences are returned.
        num_logprobs: how many of the likeliest tokens to return for each token; None for no log-probabilities.
        vocabulary: names the tokens in log-probabilities.
    """

    search: BeamSearch
    num_replies: int
    num_logprobs: int | None
    vocabulary: Vocabulary
    submissions: list[Submission] = field(default_factory=list)
    has_begun: bool = False
    _candidates: dict[int, Candidates] = field(default_factory=dict)  # of the present step, by the beam's index

    def report(self, candidates: Mapping[int, Candidates]) -> None:
        """Adds what beams computed, by their indexes. A beam that computes its step again replaces the first time."""
        self.has_begun = True
        self._candidates |= candidates

    @property
    def is_complete(self) -> bool:
        """Whether every beam has computed its step."""
        return len(self._candidates) == self.search.num_beams

    def advance(self) -> list[Choice] | None:
        """See :meth:`BeamSearch.advance`."""
        candidates = [self._candidates[index] for index in range(self.search.num_beams)]
        self._candidates = {}
        return self.search.advance(candidates)

    def replies(self) -> Sequence[Beam]:
        """Returns the best sequences so far, best first; none before the first token."""
        return self.search.replies(self.num_replies) if self.search.num_tokens else ()

    def logprobs(self, reply: Beam) -> tuple[TokenLogprobs, ...]:
        """Returns the log-probabilities of a reply, if they were requested."""
        if self.num_logprobs is None:
            return ()
        return tuple(named_scores(self.vocabulary, scores) for scores in reply.scores(self.num_logprobs))
