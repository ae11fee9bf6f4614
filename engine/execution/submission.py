"""A submission: a caller's request with its sampling state, its detokenizer and its siblings (``n`` > 1, or beams)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from engine.execution.beam_stream import BeamStream
from engine.interface import Caller
from engine.outputs import TokenLogprobs
from engine.parameter_table import MAX_SEED
from engine.sampling.grammar import ReplyGrammar
from engine.sampling.inspection import RowInspector
from engine.sampling.sampler import SamplingRow, TokenBan
from engine.sampling_params import SamplingParams
from engine.scheduling.adapter import Adapter
from engine.scheduling.request import Request
from engine.text.detokenizer import Detokenizer


@dataclass(slots=True)
class Submission:
    """One reply, with the state that turns its logits into tokens and its tokens into text."""

    request: Request
    sampling: SamplingRow
    detokenizer: Detokenizer
    stream_id: str  #: the stream its deltas belong to: the id of its first sibling
    index: int  #: which of the ``n`` replies to the prompt
    forks: list[Submission] = field(default_factory=list)  #: its siblings, until they start
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  #: of the prompt so far, if requested
    beams: BeamStream | None = None  #: the search that its siblings are the beams of
    inspector: RowInspector | None = None  #: inspects the scored tokens of the prompt, if that was requested

    @property
    def may_end_by_text(self) -> bool:
        """Whether what the reply says may end it, so that the text of each token must be known before the next step."""
        return self.detokenizer.may_stop or self.sampling.grammar is not None


def make_submission(
    stream_id: str,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    bans: Callable[[Request], Sequence[TokenBan]],
    make_grammar: Callable[[Request], ReplyGrammar | None],
    make_detokenizer: Callable[[], Detokenizer],
    max_tokens: int,
    stop_token_ids: frozenset[int],
    arrival: float,
    deadline: float | None,
    priority: int,
    cache_salt: bytes,
    num_shared_tokens: int = 0,
    caller: Caller | None = None,
    beams: BeamStream | None = None,
    adapter: Adapter | None = None,
) -> Submission:
    """Makes the submission of ``params.n`` replies to one prompt: the first computes the prompt, the rest fork it.

    With beam search it makes one of each beam instead.

    Args:
        bans: makes the token bans of one reply.
        make_grammar: makes the matcher of one reply's grammar; None if the reply has no form to hold to.
        make_detokenizer: makes the detokenizer of one reply.
        num_shared_tokens: length of the prompt's prefix that depends on no user's text.
        beams: the search of ``params.beam_search``.
    """
    if beams is not None:
        params = replace(params, logprobs=beams.search.num_candidates)
    seed = params.seed if params.seed is not None else secrets.randbits(63)
    siblings: list[Submission] = []
    for index in range(params.num_sequences):
        request = Request(
            id=stream_id if index == 0 else f"{stream_id}/{index}",
            prompt_token_ids=tuple(prompt),
            params=params,
            seed=seed_of(seed, index),
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            arrival=arrival,
            deadline=deadline,
            priority=priority,
            cache_salt=cache_salt,
            private_salt=b"" if caller is None else caller.salt,
            num_shared_tokens=num_shared_tokens,
            adapter=adapter,
            user=None if caller is None else caller.user or None,
            is_beam=beams is not None,
        )
        sampling = SamplingRow(
            request.id,
            params,
            seed=request.seed,
            token_ids=request.token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            stop_token_ids=stop_token_ids,
            bans=bans(request),
            grammar=make_grammar(request),
        )
        siblings.append(Submission(request, sampling, make_detokenizer(), stream_id, index, beams=beams))
    first, *forks = siblings
    first.forks = forks
    first.request.forks = [fork.request for fork in forks]
    if beams is not None:
        beams.submissions = siblings
    return first


def seed_of(seed: int, index: int) -> int:
    """Returns the seed of the ``index``-th reply to a prompt; the first reply uses ``seed`` itself."""
    if index == 0:
        return seed
    digest = blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED
