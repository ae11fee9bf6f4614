"""The engine without its thread: scheduler, runner, sampler and text streams, one synchronous step at a time."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic

from torch import Tensor

from engine.attention.selection import select_kernel
from engine.bad_words import TokenSequenceBan, token_sequences
from engine.block_tables import held_blocks
from engine.cache_layout import CacheLayout
from engine.capacity import plan_capacity
from engine.errors import (
    ContextLengthError,
    DeadlineError,
    EngineError,
    InvalidRequestError,
    LogitsError,
    ModelLoadError,
)
from engine.forbidden_words import WordBan, WordLists, read_word_list
from engine.interface import ChatMessage
from engine.kv_cache import BlockPool
from engine.logprobs import Scores, score
from engine.metrics import EngineMetrics
from engine.model.loading import LoadedModel
from engine.outputs import Delta, EngineStats, FinishReason, Logprob, PrefillProgress, TokenLogprobs
from engine.request import Request
from engine.runner import Runner
from engine.sampler import Sampler, SamplingRow, TokenBan
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler, SchedulerCounters, StepPlan
from engine.settings import EngineSettings
from engine.text import ChatTemplate, TextStream
from engine.utilisation import StepLoad
from engine.vocabulary import Vocabulary
from engine.words import WordGuard


@dataclass(slots=True)
class Submission:
    """A request, with what turns its logits into tokens and its tokens into text."""

    request: Request
    sampling: SamplingRow
    text: TextStream
    logprobs: tuple[TokenLogprobs, ...] = ()  #: of the newest token, when they were asked for
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  #: of the prompt so far, when asked for


@dataclass(slots=True)
class StepResult:
    """What one step brought: at most one delta for each request, and the requests that broke."""

    deltas: list[Delta] = field(default_factory=list)
    failures: list[tuple[str, EngineError]] = field(default_factory=list)


def overdue(request: Request) -> DeadlineError:
    """For a request whose deadline passed before its first token."""
    assert request.deadline is not None
    return DeadlineError(
        f"The reply had not begun when its {request.deadline - request.arrival:g} seconds were over. Try again when "
        "fewer requests are waiting, or allow more time."
    )


class EngineCore:
    """Owns the model, the cache and every request in flight. Used by one thread only.

    Args:
        model: loaded and ready.
        settings: sizes and limits.
    """

    def __init__(self, model: LoadedModel, settings: EngineSettings) -> None:
        layout = CacheLayout.of(model.layers)
        capacity = plan_capacity(model, layout, settings)
        self.model = model
        self.max_model_len = capacity.max_model_len
        self.kernel = select_kernel(settings.attention, model.needs, model.device, settings.kv_block_size)
        self._pool = BlockPool(
            capacity.num_blocks, settings.kv_block_size, enable_prefix_caching=settings.enable_prefix_caching
        )
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=settings.max_num_seqs,
            max_batched_tokens=settings.max_batched_tokens,
            max_model_len=capacity.max_model_len,
            windows=layout.windows,
        )
        self._runner = Runner(
            model, self.kernel, layout, num_blocks=capacity.num_blocks, block_size=settings.kv_block_size
        )
        self._sampler = Sampler()
        self._template = ChatTemplate(model.tokenizer, model.vocab_size)
        self._vocabulary = Vocabulary(model.tokenizer, model.vocab_size)
        self._word_lists = _word_lists(self._vocabulary, settings)
        self.default_params = SamplingParams.from_generation_config(model.generation_config)
        self._submissions: dict[str, Submission] = {}
        self._deadlines: dict[str, float] = {}  # of those in flight that have one
        self._in_step: tuple[str, ...] = ()  # who was computed last
        self._finished: dict[str, int] = {reason.value: 0 for reason in FinishReason}
        self.metrics = EngineMetrics(self.stats)

    # -- callable from any thread -----------------------------------------------------------------------

    def render_chat(
        self, messages: Sequence[ChatMessage], params: SamplingParams | None
    ) -> tuple[list[int], SamplingParams]:
        """Prompt tokens of a conversation, and the parameters its reply is sampled with.

        Raises:
            InvalidRequestError: the template or :meth:`resolve` refuses it.
        """
        prompt = self._template.render(messages)
        params = self.resolve(prompt, params)
        return prompt, replace(params, stop=(*params.stop, *self._template.stop))

    def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Of the token ids sampled for a reply, those that spell exactly its ``text``; empty when none do."""
        return self._template.reply_tokens(text, token_ids)

    def encode(self, prompt: str | Sequence[int], params: SamplingParams | None) -> tuple[list[int], SamplingParams]:
        """The same for a plain text or token ids, without a template."""
        tokens = self._template.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return tokens, self.resolve(tokens, params)

    def resolve(self, prompt: Sequence[int], params: SamplingParams | None) -> SamplingParams:
        """Complete the parameters by the model's defaults, and check that the request can be served.

        ``max_tokens`` is an upper bound: a reply also ends, with ``length``, where the context window does.

        Raises:
            ContextLengthError: no token of reply fits behind the prompt.
            InvalidRequestError: a parameter names a token that the model does not have, or asks for more than fits.
        """
        resolved = (params or SamplingParams()).with_defaults(self.default_params)
        resolved.check_vocabulary(self.model.vocab_size)
        try:
            self._word_lists.get(resolved.forbidden_words)  # made here, where nobody waits for the device
        except ValueError as error:
            raise InvalidRequestError(f"forbidden_words cannot be used: {error}") from error
        if not prompt:
            raise InvalidRequestError("The prompt is empty: send at least one token.")
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < self.model.vocab_size:  # a tokenizer may know more tokens than its model
                raise InvalidRequestError(
                    f"The prompt holds token id {token}, but the model's ids end at {self.model.vocab_size - 1}."
                )
        room = self.max_model_len - len(prompt)
        if room < 1:
            raise ContextLengthError(
                f"The prompt is {len(prompt)} tokens long; the model reads at most {self.max_model_len}, and at "
                "least one must be left for the reply. Shorten it.",
                prompt_tokens=len(prompt),
                max_model_len=self.max_model_len,
            )
        if resolved.min_tokens > room:
            raise InvalidRequestError(
                f"min_tokens={resolved.min_tokens} asks for more than the {room} tokens that fit behind the prompt."
            )
        return resolved

    def submission(
        self, request_id: str, prompt: Sequence[int], params: SamplingParams, deadline: float | None = None
    ) -> Submission:
        """Wrap up a request whose parameters went through :meth:`resolve`.

        Args:
            deadline: seconds from now, after which the reply is ended where it stands.

        Raises:
            InvalidRequestError: the deadline is not a time to come.
        """
        if deadline is not None and not 0 < deadline < inf:
            raise InvalidRequestError(f"deadline must be a number of seconds greater than 0 (got {deadline:g})")
        arrival = monotonic()
        room = self.max_model_len - len(prompt)
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self.model.eos_token_ids
        request = Request(
            id=request_id,
            prompt_token_ids=tuple(prompt),
            params=params,
            seed=params.seed if params.seed is not None else secrets.randbits(63),
            max_tokens=min(params.max_tokens or room, room),
            stop_token_ids=stop_token_ids,
            arrival=arrival,
            deadline=None if deadline is None else arrival + deadline,
        )
        sampling = SamplingRow(
            request_id,
            params,
            seed=request.seed,
            token_ids=request.token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            stop_token_ids=stop_token_ids,
            bans=self._bans(request),
        )
        words = self._word_lists.get(params.forbidden_words)
        guard = WordGuard(words.matcher) if words else None
        submission = Submission(
            request, sampling, TextStream(self.model.tokenizer, params.stop, params.min_tokens, guard)
        )
        if params.prompt_logprobs is not None:
            submission.prompt_logprobs.append(TokenLogprobs(self._logprob(prompt[0], None), None, ()))
        return submission

    def _bans(self, request: Request) -> list[TokenBan]:
        """What keeps words out of a reply; made anew for each reply, whose text it follows."""
        bans: list[TokenBan] = []
        words = self._word_lists.get(request.params.forbidden_words)
        if words is not None:
            bans.append(WordBan(words, request.max_tokens, request.stop_token_ids))
        if request.params.bad_words:
            encode = self._template.encode_plain
            sequences = {each for word in request.params.bad_words for each in token_sequences(word, encode)}
            # A tokenizer may know more tokens than its model, which then never writes them.
            bans.append(TokenSequenceBan(each for each in sequences if max(each) < self.model.vocab_size))
        return bans

    # -- for the one thread that owns the device ------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, submission: Submission) -> None:
        """Queue a request; ``ValueError`` when it can never be served."""
        self._scheduler.add(submission.request)
        self._submissions[submission.request.id] = submission
        if submission.request.deadline is not None:
            self._deadlines[submission.request.id] = submission.request.deadline

    def abort(self, request_id: str) -> bool:
        """End a request and free its blocks; False when it is no longer in flight."""
        return self._end(request_id, FinishReason.ABORT)

    def abort_all(self) -> None:
        """End every request and free its blocks."""
        for request_id in list(self._submissions):
            self.abort(request_id)

    def evacuate(self) -> tuple[list[Submission], list[Submission]]:
        """After a failed step: those that were in it, and all others, ready for another core.

        Gives up the cache. What remains can still render and encode, until the other core is there.
        """
        in_step = set(self._in_step)
        everyone = [self._submissions[request.id] for request in self._scheduler.evacuate()]
        failed = [one for one in everyone if one.request.id in in_step]
        self._finished[FinishReason.ERROR.value] += len(failed)
        self._submissions.clear()
        self._deadlines.clear()
        del self._runner
        return failed, [one for one in everyone if one.request.id not in in_step]

    def step(self) -> StepResult:
        """Compute one step."""
        result = StepResult()
        self._end_overdue(result)
        plan = self._scheduler.plan()
        if not plan.chunks:
            return result
        self._in_step = tuple(chunk.request.id for chunk in plan.chunks)
        began = monotonic()
        logits = self._runner.execute(plan)
        if len(logits) > len(plan.sampling):
            self._score_prompts(plan, logits[len(plan.sampling) :])
            logits = logits[: len(plan.sampling)]
        previous = {chunk.request.id: chunk.request.last_token for chunk in plan.sampling}
        tokens = self._sample(plan, logits, result)
        self._measure(plan, monotonic() - began)
        advanced = self._scheduler.commit(plan, tokens)

        for chunk in plan.chunks:
            request = chunk.request
            if not chunk.samples and request.num_output_tokens == 0:
                progress = PrefillProgress(chunk.end, request.num_prompt_tokens)
                result.deltas.append(Delta(request.id, progress=progress))
        for request in advanced:
            self._observe(request, previous[request.id])
            result.deltas.append(self._advance(request))
        return result

    def _end_overdue(self, result: StepResult) -> None:
        """A reply whose time is over ends with what it has; a request that has nothing fails with a sentence."""
        if not self._deadlines:
            return
        now = monotonic()
        for id_ in [id_ for id_, deadline in self._deadlines.items() if deadline <= now]:
            submission = self._submissions[id_]
            request = self._scheduler.finish(id_, FinishReason.DEADLINE)
            assert request is not None
            delta = self._last(request, Delta(id_, submission.text.finish()))
            if request.num_output_tokens:
                result.deltas.append(delta)
            else:
                result.failures.append((id_, overdue(request)))

    def _measure(self, plan: StepPlan, seconds: float) -> None:
        self.metrics.step(
            StepLoad(
                seconds=seconds,
                sequences=len(plan.chunks) / self._scheduler.max_num_seqs,
                tokens=plan.num_tokens / self._scheduler.max_batched_tokens,
                prompt_tokens=sum(max(0, min(c.end, c.request.num_prompt_tokens) - c.start) for c in plan.chunks),
                generated_tokens=len(plan.sampling),
            )
        )

    def _sample(self, plan: StepPlan, logits: Tensor, result: StepResult) -> dict[str, int]:
        """The next token of each sampling request. One with unusable scores fails alone, not the whole batch."""
        ids = [chunk.request.id for chunk in plan.sampling]
        while ids:
            rows = [self._submissions[id_].sampling for id_ in ids]
            try:
                tokens = self._sampler.sample(logits, rows)
                self._score(logits, ids, tokens)
                return dict(zip(ids, tokens, strict=True))
            except LogitsError as error:
                broken = set(error.request_ids)
                for id_ in broken:
                    # What it computed may be NaN, which would spread: masked keys are multiplied by zero, not skipped.
                    self._runner.erase(self._pool.discard(held_blocks(self._submissions[id_].request)))
                    self._end(id_, FinishReason.ERROR)
                    result.failures.append((id_, error))
                kept = [index for index, id_ in enumerate(ids) if id_ not in broken]
                ids = [ids[index] for index in kept]
                logits = logits[kept]
        return {}

    def _score(self, logits: Tensor, ids: Sequence[str], tokens: Sequence[int]) -> None:
        """Log-probabilities of what was sampled, for the requests that asked for them. The others cost nothing."""
        asked = [
            (index, submission, submission.request.params.logprobs)
            for index, submission in enumerate(self._submissions[id_] for id_ in ids)
        ]
        wanted = [(index, submission, count) for index, submission, count in asked if count is not None]
        if not wanted:
            return
        rows = [index for index, _, _ in wanted]
        scored = score(logits[rows], [tokens[index] for index in rows], [count for _, _, count in wanted])
        for (_, submission, _), scores in zip(wanted, scored, strict=True):
            submission.logprobs = (self._named(scores),)

    def _score_prompts(self, plan: StepPlan, logits: Tensor) -> None:
        """Log-probabilities of the prompts' tokens in this step, from the logits of the tokens before them."""
        chunks = [chunk for chunk in plan.chunks if chunk.scored]
        tokens: list[int] = []
        counts: list[int] = []
        for chunk in chunks:
            tokens += chunk.request.prompt_token_ids[chunk.scored.start + 1 : chunk.scored.stop + 1]
            counts += [chunk.request.params.prompt_logprobs or 0] * len(chunk.scored)
        scored = iter(score(logits, tokens, counts))
        for chunk in chunks:
            known = self._submissions[chunk.request.id].prompt_logprobs
            known += (self._named(next(scored)) for _ in chunk.scored)

    def _named(self, scores: Scores) -> TokenLogprobs:
        return TokenLogprobs(
            token=self._logprob(scores.token_id, scores.logprob),
            rank=scores.rank,
            top=tuple(self._logprob(token_id, logprob) for token_id, logprob in scores.top),
        )

    def _logprob(self, token_id: int, logprob: float | None) -> Logprob:
        return Logprob(token_id, logprob, self._vocabulary.name(token_id), self._vocabulary.data(token_id))

    def forget(self) -> None:
        """Drop what the prefix cache knows and what was counted, after warming up."""
        self._pool.forget()
        self._scheduler.counters = SchedulerCounters()
        self._finished = dict.fromkeys(self._finished, 0)
        self.metrics = EngineMetrics(self.stats)

    def check(self) -> None:
        """Verify the books of the block pool; with nothing in flight every block must be free."""
        self._scheduler.check()

    def stats(self) -> EngineStats:
        """Counters and gauges. Plain reads, safe from any thread."""
        counters = self._scheduler.counters
        return EngineStats(
            num_requests_running=self._scheduler.num_running,
            num_requests_waiting=self._scheduler.num_waiting,
            kv_cache_usage=self._pool.usage,
            num_kv_blocks=self._pool.num_usable,
            kv_block_size=self._pool.block_size,
            prompt_tokens=counters.prompt_tokens,
            cached_prompt_tokens=counters.cached_prompt_tokens,
            generation_tokens=counters.generation_tokens,
            num_preemptions=counters.preemptions,
            num_steps=counters.steps,
            requests_finished=dict(self._finished),
        )

    # -- inner workings ---------------------------------------------------------------------------------

    def _advance(self, request: Request) -> Delta:
        """Turn a request's newest token into text, and end the request where that completes a stop string."""
        token = request.token_ids[-1]
        submission = self._submissions[request.id]
        text, stop_string = "", None
        if request.finish_reason is FinishReason.STOP:
            text = submission.text.finish()  # the stop token itself is not part of the text
        else:
            piece = submission.text.push([token])
            text, stop_string = piece.text, piece.stop
            if stop_string is not None:
                self._scheduler.finish(request.id, FinishReason.STOP, stop_string)
                request.finish_reason, request.stop_reason = FinishReason.STOP, stop_string
            elif request.is_finished:
                text += submission.text.finish()
        # Told at once, for whoever stops the reply and so never sees its timings.
        cached = request.num_cached_tokens if request.num_output_tokens == 1 else None
        delta = Delta(
            request.id,
            text,
            (token,),
            logprobs=submission.logprobs,
            prompt_logprobs=tuple(submission.prompt_logprobs),
            cached_prompt_tokens=cached,
        )
        submission.prompt_logprobs.clear()
        return self._last(request, delta) if request.is_finished else delta

    def _end(self, request_id: str, reason: FinishReason) -> bool:
        request = self._scheduler.finish(request_id, reason)
        if request is None:
            return False
        self._last(request, Delta(request_id))
        return True

    def _last(self, request: Request, delta: Delta) -> Delta:
        """Close the books on a request; ``delta`` with what a last delta says."""
        del self._submissions[request.id]
        self._deadlines.pop(request.id, None)
        assert request.finish_reason is not None
        timings = request.timings(monotonic())
        self._finished[request.finish_reason.value] += 1
        self.metrics.finished(request.finish_reason, timings)
        return replace(delta, finish_reason=request.finish_reason, stop_reason=request.stop_reason, timings=timings)

    def _observe(self, request: Request, previous_token: float | None) -> None:
        assert request.last_token is not None
        if previous_token is None:
            self.metrics.first_token(request.last_token - request.arrival)
        else:
            self.metrics.token_gap(request.last_token - previous_token)


def _word_lists(vocabulary: Vocabulary, settings: EngineSettings) -> WordLists:
    try:
        return WordLists(vocabulary, read_word_list(settings.forbidden_words or ""))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"ENGINE_FORBIDDEN_WORDS cannot be used: {error}.") from error
