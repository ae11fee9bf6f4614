"""Converts the engine's deltas to OpenAI's responses: whole, or as the chunks of a stream."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.api.openai.chat_choices import CallingChoices, ShownReasoning, Thoughts, chat_delta, chat_message
from app.api.openai.errors import to_openai_error
from app.api.openai.logprobs import TextLogprobs, chat_logprobs, prompt_logprobs_by_id
from app.api.openai.requests import BaseCompletionRequest, ChatCompletionRequest, CompletionRequest
from app.api.openai.usage import RunningUsage, usage
from app.api.sse import close, sse_event
from app.error_format import openai_error
from engine import Delta, EngineError, FinishReason, Timings, TokenLogprobs

CompletionKind = Literal["chat", "text"]


@dataclass(frozen=True, slots=True)
class Extras:
    """The parts of the response, besides the text, that the request asks for."""

    token_ids: bool = False
    logprobs: bool = False
    prompt_logprobs: bool = False
    echo: bool = False  #: the text begins with the prompt
    prompt_texts: tuple[str | None, ...] = (None,)  #: of each prompt; None for token ids
    replies: int = 1  #: to each prompt
    streamed_usage: bool = False  #: a stream ends with the usage
    continuous_usage: bool = False  #: and every chunk has it
    reasoning: ShownReasoning = ShownReasoning.STREAMED

    @classmethod
    def from_request(cls, body: BaseCompletionRequest) -> Extras:
        echo = isinstance(body, CompletionRequest) and bool(body.echo)
        return cls(
            token_ids=bool(body.return_token_ids),
            logprobs=body.reply_logprobs() is not None,
            prompt_logprobs=body.prompt_logprobs is not None,
            echo=echo,
            prompt_texts=tuple(body.echoed_texts()) if isinstance(body, CompletionRequest) else (None,),
            replies=body.n or 1,
            streamed_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
            reasoning=_shown_reasoning(body),
        )

    @property
    def choices(self) -> int:
        """Number of replies to all prompts together."""
        return len(self.prompt_texts) * self.replies


class CompletionResponse:
    """Builds the response to one request, with ``n`` choices for each prompt.

    Args:
        model: the model's served name.
        request_id: the suffix of the response's id.
        fingerprint: see :func:`app.api.openai.served.fingerprint`.
    """

    def __init__(self, kind: CompletionKind, model: str, request_id: str, fingerprint: str, extras: Extras) -> None:
        self._kind = kind
        self._extras = extras
        self._text_logprobs: defaultdict[int, TextLogprobs] = defaultdict(TextLogprobs)
        self._echoed: set[int] = set()  # indexes of the choices that have sent the prompt
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}  # by prompt
        self._thoughts = Thoughts(extras.reasoning)
        self._calling = CallingChoices()
        self._head = {
            "id": f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request_id}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    async def full(self, deltas: AsyncIterator[Delta]) -> dict[str, Any]:
        """Reads all deltas and returns the whole response.

        Raises:
            EngineError: raised by the engine on the way.
        """
        choices: dict[int, list[Delta]] = {}
        thoughts: defaultdict[int, list[str]] = defaultdict(list)
        async for delta in deltas:
            choices.setdefault(delta.index, []).append(delta)
            thoughts[delta.index].append(self._thoughts.feed(delta))
            self._calling.note(delta)
            self._keep_prompt_logprobs(delta)
        made = []
        for index, parts in sorted(choices.items()):
            whole = replace(
                parts[-1],
                text="".join(part.text for part in parts),
                token_ids=tuple(token for part in parts for token in part.token_ids),
                token_count=sum(part.num_tokens for part in parts),
                logprobs=tuple(scores for part in parts for scores in part.logprobs),
            )
            if self._kind == "chat":
                message = chat_message(parts, "".join(thoughts[index]))
                made.append(self._choice(whole, {"message": message}))
            else:
                made.append({**self._choice(whole, None), **self._prompt_logprobs_field(index)})
        return {
            **self._head,
            "object": "chat.completion" if self._kind == "chat" else "text_completion",
            "choices": made,
            "usage": usage(
                {index: parts[-1].timings for index, parts in choices.items()},
                self._extras.replies,
                self._reasoning_tokens(),
            ),
            **(self._prompt_logprobs_field(0) if self._kind == "chat" else {}),
        }

    async def stream(self, deltas: AsyncIterator[Delta]) -> AsyncGenerator[bytes]:
        """Yields server-sent events, one per delta that has content, ending with ``[DONE]``.

        An error on the way is sent as an event, in the format of an error response.
        """
        so_far = RunningUsage(self._extras.replies) if self._extras.continuous_usage else None

        def usage_now() -> dict[str, Any]:
            if not self._extras.streamed_usage:
                return {}
            return {"usage": None if so_far is None else so_far.to_dict(self._reasoning_tokens())}

        tokens_matter = self._extras.token_ids or self._extras.logprobs or self._extras.echo
        opened = self._kind != "chat"
        try:
            timings: dict[int, Timings | None] = {}
            async for delta in deltas:
                if so_far is not None:
                    so_far.note(delta, prompt_only=not opened)
                if not opened:
                    opened = True
                    for index in range(self._extras.choices):
                        opening = Delta(request_id="", index=index)
                        role = {"delta": {"role": "assistant", "content": "", "refusal": None}}
                        yield self._chunk([self._choice(opening, role)], usage_now())
                    if so_far is not None:
                        so_far.note(delta)
                self._keep_prompt_logprobs(delta)
                self._calling.note(delta)
                content = None if self._kind != "chat" else {"delta": chat_delta(delta, self._thoughts.feed(delta))}
                is_read = delta.text if content is None else content["delta"]
                if delta.finish_reason is not None:
                    timings[delta.index] = delta.timings
                if is_read or (tokens_matter and delta.num_tokens) or delta.finish_reason is not None:
                    yield self._chunk([self._choice(delta, content)], usage_now())
            if self._extras.streamed_usage:
                whole = usage(timings, self._extras.replies, self._reasoning_tokens())
                yield self._chunk([], {"usage": whole})
        except EngineError as error:
            yield self.error_event(error)
        finally:
            await close(deltas)
        yield sse_event("[DONE]")

    def error_event(self, error: EngineError) -> bytes:
        """Encodes an error in the middle of a stream as OpenAI's clients expect it."""
        problem = to_openai_error(error)
        return sse_event({"error": openai_error(problem.status, problem.code, problem.message)})

    def _choice(self, delta: Delta, content: dict[str, Any] | None) -> dict[str, Any]:
        """Returns a choice. ``content``: the message or delta of a chat; None for a completion, which has a text."""
        if self._begins_with_prompt(delta):
            self._echoed.add(delta.index)
            content = {"text": self._prompt_text(delta.index) + delta.text}
            logprobs = self._logprobs(delta, with_prompt=True)
        else:
            content = content or {"text": delta.text}
            logprobs = self._logprobs(delta)
        choice = {
            "index": delta.index,
            **content,
            "logprobs": logprobs,
            **_finish_fields(delta, self._calling),
        }
        if self._extras.token_ids:
            unknown = delta.num_tokens > len(delta.token_ids)
            choice["token_ids"] = None if unknown else list(delta.token_ids)
        return choice

    def _logprobs(self, delta: Delta, *, with_prompt: bool = False) -> dict[str, Any] | None:
        if not self._extras.logprobs or not (delta.num_tokens or with_prompt):
            return None
        if self._kind == "chat":
            return chat_logprobs(delta.logprobs)
        text_logprobs = self._text_logprobs[delta.index]
        if not with_prompt:
            return text_logprobs.append(delta.logprobs, begins=delta.text)
        scores = self._prompt_logprobs.get(delta.index // self._extras.replies, ())
        prompt = text_logprobs.append(scores, begins=self._prompt_text(delta.index))
        reply = text_logprobs.append(delta.logprobs)
        return {name: prompt[name] + reply[name] for name in prompt}

    def _reasoning_tokens(self) -> int | None:
        """Tokens of thinking so far; None for a completion, which has none apart from its text."""
        return self._thoughts.num_tokens if self._kind == "chat" else None

    def _begins_with_prompt(self, delta: Delta) -> bool:
        """Whether to send the prompt with this delta: once per choice, with its first token, or else with its end."""
        tells = delta.num_tokens > 0 or delta.finish_reason is not None
        return self._extras.echo and tells and delta.index not in self._echoed

    def _prompt_text(self, index: int) -> str:
        number = index // self._extras.replies
        text = self._extras.prompt_texts[number]
        if text is not None:
            return text
        return b"".join(one.token.data for one in self._prompt_logprobs.get(number, ())).decode(errors="replace")

    def _keep_prompt_logprobs(self, delta: Delta) -> None:
        if delta.prompt_logprobs:
            self._prompt_logprobs.setdefault(delta.index // self._extras.replies, delta.prompt_logprobs)

    def _prompt_logprobs_field(self, index: int) -> dict[str, Any]:
        if not self._extras.prompt_logprobs:
            return {}
        scores = self._prompt_logprobs.get(index // self._extras.replies, ())
        return {"prompt_logprobs": prompt_logprobs_by_id(scores)}

    def _chunk(self, choices: list[dict[str, Any]], extra: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._kind == "chat" else "text_completion"
        return sse_event({**self._head, "object": kind, "choices": choices, **extra})


def _shown_reasoning(body: BaseCompletionRequest) -> ShownReasoning:
    if not isinstance(body, ChatCompletionRequest):
        return ShownReasoning.STREAMED
    if body.include_reasoning is False:
        return ShownReasoning.HIDDEN
    return ShownReasoning.WHOLE if body.stream_reasoning is False else ShownReasoning.STREAMED


def _finish_fields(delta: Delta, calling: CallingChoices) -> dict[str, Any]:
    """OpenAI's clients know no deadline: report it as the finish reason 'length', with its own stop reason."""
    if delta.finish_reason is FinishReason.DEADLINE:
        return {"finish_reason": FinishReason.LENGTH, "stop_reason": FinishReason.DEADLINE}
    return {"finish_reason": calling.finish_reason(delta), "stop_reason": delta.stop_reason}
