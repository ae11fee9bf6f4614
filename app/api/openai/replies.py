"""The engine's deltas in OpenAI's shapes: whole, or as chunks of a stream."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.api.openai.errors import translated
from app.api.openai.logprobs import TextLogprobs, chat_logprobs, prompt_logprobs_by_id
from app.api.openai.requests import CommonRequest, TextRequest
from app.api.sse import close, sse_event
from app.error_shapes import openai_error
from engine import Delta, EngineError, FinishReason, Timings, TokenLogprobs

Kind = Literal["chat", "text"]


@dataclass(frozen=True, slots=True)
class Extras:
    """What the caller asked for beside the text."""

    token_ids: bool = False
    logprobs: bool = False
    prompt_logprobs: bool = False
    echo: bool = False  #: the text begins with the prompt
    prompt_text: str | None = None  #: the prompt when it came as text
    choices: int = 1

    @classmethod
    def asked_by(cls, body: CommonRequest) -> Extras:
        echo = isinstance(body, TextRequest) and bool(body.echo)
        return cls(
            token_ids=bool(body.return_token_ids),
            logprobs=body.reply_logprobs() is not None,
            prompt_logprobs=body.prompt_logprobs is not None,
            echo=echo,
            choices=body.n or 1,
            prompt_text=body.echoed_text() if isinstance(body, TextRequest) and echo else None,
        )


class Reply:
    """What one request brings on its way out: ``n`` choices."""

    def __init__(self, kind: Kind, model: str, request_id: str, extras: Extras) -> None:
        self._kind = kind
        self._extras = extras
        self._text_logprobs: defaultdict[int, TextLogprobs] = defaultdict(TextLogprobs)
        self._echoed: set[int] = set()  # choices whose text has begun with the prompt
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._head = {
            "id": f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self, deltas: AsyncIterator[Delta]) -> dict[str, Any]:
        """Read to the end and answer in one piece.

        Raises:
            EngineError: what the engine raised on the way.
        """
        choices: dict[int, list[Delta]] = {}
        async for delta in deltas:
            choices.setdefault(delta.index, []).append(delta)
            self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs
        told = {}
        if self._extras.prompt_logprobs:
            told["prompt_logprobs"] = prompt_logprobs_by_id(self._prompt_logprobs)
        made = []
        for _index, parts in sorted(choices.items()):
            whole = replace(
                parts[-1],
                text="".join(part.text for part in parts),
                token_ids=tuple(token for part in parts for token in part.token_ids),
                token_count=sum(part.num_tokens for part in parts),
                logprobs=tuple(scores for part in parts for scores in part.logprobs),
            )
            if self._kind == "chat":
                made.append(self._choice(whole, {"message": {"role": "assistant", "content": whole.text}}))
            else:
                made.append({**self._choice(whole, None), **told})
        return {
            **self._head,
            "object": "chat.completion" if self._kind == "chat" else "text_completion",
            "choices": made,
            "usage": usage([parts[-1].timings for parts in choices.values()]),
            **(told if self._kind == "chat" else {}),
        }

    async def chunks(self, deltas: AsyncIterator[Delta], *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Server-sent events, one per delta that says something, ending with ``[DONE]``.

        An error on the way is sent as an event, in the shape of an error answer.
        """
        no_usage = {"usage": None} if include_usage else {}
        tokens_matter = self._extras.token_ids or self._extras.logprobs or self._extras.echo
        try:
            if self._kind == "chat":
                for index in range(self._extras.choices):
                    opening = Delta(request_id="", index=index)
                    role = {"delta": {"role": "assistant", "content": ""}}
                    yield self._chunk([self._choice(opening, role)], no_usage)
            timings: list[Timings | None] = []
            async for delta in deltas:
                self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs
                if delta.finish_reason is not None:
                    timings.append(delta.timings)
                if delta.text or (tokens_matter and delta.num_tokens) or delta.finish_reason is not None:
                    content = {"delta": {"content": delta.text} if delta.text else {}}
                    yield self._chunk([self._choice(delta, content if self._kind == "chat" else None)], no_usage)
            if include_usage:
                yield self._chunk([], {"usage": usage(timings)})
        except EngineError as error:
            yield error_event(error)
        finally:
            await close(deltas)
        yield sse_event("[DONE]")

    def _choice(self, delta: Delta, content: dict[str, Any] | None) -> dict[str, Any]:
        """``content``: of a chat; a completion has its text."""
        logprobs = self._logprobs(delta)
        choice = {
            "index": delta.index,
            **(content or {"text": self._echo(delta) + delta.text}),
            "logprobs": logprobs,
            **_ending(delta),
        }
        if self._extras.token_ids:
            unknown = delta.num_tokens > len(delta.token_ids)
            choice["token_ids"] = None if unknown else list(delta.token_ids)
        return choice

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if not self._extras.logprobs or not delta.num_tokens:
            return None
        if self._kind == "chat":
            return chat_logprobs(delta.logprobs)
        text_logprobs = self._text_logprobs[delta.index]
        if not self._extras.echo or delta.index in self._echoed:
            return text_logprobs.told(delta.logprobs, begins=delta.text)
        prompt = text_logprobs.told(self._prompt_logprobs, begins=self._prompt_text())
        reply = text_logprobs.told(delta.logprobs)
        return {name: prompt[name] + reply[name] for name in prompt}

    def _echo(self, delta: Delta) -> str:
        """The prompt, once for each choice, with its first token."""
        if not self._extras.echo or delta.index in self._echoed or not delta.num_tokens:
            return ""
        self._echoed.add(delta.index)
        return self._prompt_text()

    def _prompt_text(self) -> str:
        if self._extras.prompt_text is not None:
            return self._extras.prompt_text
        return b"".join(one.token.data for one in self._prompt_logprobs).decode(errors="replace")

    def _chunk(self, choices: list[dict[str, Any]], extra: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._kind == "chat" else "text_completion"
        return sse_event({**self._head, "object": kind, "choices": choices, **extra})


def _ending(delta: Delta) -> dict[str, Any]:
    """OpenAI's clients know no deadline: to them it is a limit that was reached."""
    if delta.finish_reason is FinishReason.DEADLINE:
        return {"finish_reason": FinishReason.LENGTH, "stop_reason": FinishReason.DEADLINE}
    return {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}


def error_event(error: EngineError) -> bytes:
    """An error in the middle of a stream, where OpenAI's clients look for it."""
    problem = translated(error)
    return sse_event({"error": openai_error(problem.status, problem.code, problem.message)})


def usage(choices: Sequence[Timings | None]) -> dict[str, Any] | None:
    """Tokens read, once for all choices, found in the cache, and written by all of them."""
    known = [timings for timings in choices if timings is not None]
    if not known:
        return None
    prompt_tokens = known[0].prompt_tokens
    completion_tokens = sum(timings.completion_tokens for timings in known)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": known[0].cached_prompt_tokens},
    }
