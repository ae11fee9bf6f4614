"""A conversation in the terminal: its history and settings, and the commands that change them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from app.errors import InvalidInput
from engine import (
    PARAMETERS,
    ChatEngine,
    ChatMessage,
    ChatOptions,
    Delta,
    FinishReason,
    PreparedPrompt,
    SamplingParams,
    Truncation,
)

THINKING: Final = "thinking"
HOW_TO_LENGTHEN: Final = "/set max_tokens allows more."
_SETTABLE: Final = {name: one for name, one in PARAMETERS.items() if name not in ("n", "logprobs", "prompt_logprobs")}

HELP: Final = """\
/help                  show this
/reset                 forget the conversation; the system prompt and the settings stay
/system TEXT           set the system prompt; without TEXT show it; /system none removes it
/set NAME VALUE        set a sampling parameter, as in /set temperature 0.2; /set alone shows them
/set thinking on|off   whether a model that can do both thinks before it answers
/save FILE             write the conversation to a new file, as JSON, or as Markdown if it ends with .md
/exit                  leave, as Ctrl-D does
A backslash at the end of a line continues the message on the next one; a line of \"\"\" begins and ends a message
of several lines. Ctrl-C stops the reply. A message that begins with a slash is written with two: //."""


class ChatSession:
    """A conversation, kept in memory.

    Args:
        system: the system prompt; empty for none.
        note: called with a sentence about the conversation, for the user.
    """

    def __init__(self, engine: ChatEngine, system: str, note: Callable[[str], None]) -> None:
        self.is_over = False
        self._engine = engine
        self._note = note
        self._system = system
        self._messages: list[ChatMessage] = []
        self._given: dict[str, Any] = {}
        self._thinking: bool | None = None
        self._prepared: PreparedPrompt | None = None  # of the last turn
        self._num_omitted = 0

    async def reply(self, text: str) -> AsyncGenerator[Delta]:
        """Yields the deltas of the reply to a message. A reply that is stopped stays in the history with its text.

        Raises:
            EngineError: the engine refuses the message, which is not kept, or fails.
        """
        asked: ChatMessage = {"role": "user", "content": text}
        messages = [*self._system_message(), *self._messages, asked]
        prepared = await self._engine.prepare(
            messages,
            SamplingParams(**self._given),
            truncation=Truncation(self._num_omitted),
            previous=self._prepared,
            options=ChatOptions(thinking=self._thinking),
        )
        self._note_omitted(prepared.num_omitted_messages)
        parts: list[Delta] = []
        try:
            async with aclosing(self._engine.stream(prepared)) as deltas:
                async for delta in deltas:
                    parts.append(delta)
                    yield delta
            self._prepared = prepared
        finally:
            if parts:
                self._messages += [asked, self._reply_message(parts)]
        ids = tuple(token for part in parts for token in part.token_ids)
        reply = self._messages[-1]
        if known := await self._engine.reply_tokens(reply["content"], ids):
            reply["token_ids"] = known

    def command(self, line: str) -> str:
        """Runs a command and returns what to show.

        Raises:
            InvalidInput: there is no such command, or it cannot be done; says why.
        """
        name, _, rest = line.strip().partition(" ")
        try:
            run = _COMMANDS[name]
        except KeyError:
            raise InvalidInput(f"There is no command {name[:40]}. /help lists the commands.") from None
        return run(self, rest.strip())

    def _reset(self, _rest: str) -> str:
        self._messages, self._prepared, self._num_omitted = [], None, 0
        return "The conversation is forgotten."

    def _set_system(self, rest: str) -> str:
        if not rest:
            return self._system or "There is no system prompt."
        self._system = "" if rest == "none" else rest
        return "The system prompt is set." if self._system else "The system prompt is removed."

    def _set(self, rest: str) -> str:
        name, _, text = rest.partition(" ")
        text = text.strip()
        if not name:
            return self._shown_settings()
        if name == THINKING:
            if text not in ("on", "off", "default"):
                raise InvalidInput("thinking is on, off or default, as in /set thinking off.")
            self._thinking = {"on": True, "off": False, "default": None}[text]
        elif name not in _SETTABLE:
            raise InvalidInput(f"{name[:40]} is no setting. The settings are {', '.join([*_SETTABLE, THINKING])}.")
        elif not text:
            raise InvalidInput(f"{name} needs a value, as in /set {name} 1, or default.")
        else:
            given = {key: value for key, value in self._given.items() if key != name}
            if text != "default":
                given[name] = _value(text)
                SamplingParams(**given)
            self._given = given
        return f"{name} is {text}."

    def _save(self, rest: str) -> str:
        if not self._messages:
            raise InvalidInput("There is nothing to save yet.")
        file = Path(rest or f"{datetime.now():%Y-%m-%d %H.%M.%S} Deskmate.json").expanduser()
        messages = [_plain(message) for message in [*self._system_message(), *self._messages]]
        if file.suffix == ".md":
            text = (
                "\n\n".join(f"## {message['role'].capitalize()}\n\n{message['content']}" for message in messages) + "\n"
            )
        else:
            saved = {"model": self._engine.info.name, "messages": messages}
            text = json.dumps(saved, ensure_ascii=False, indent=2) + "\n"
        try:
            with file.open("x", encoding="utf-8") as out:
                out.write(text)
        except FileExistsError:
            raise InvalidInput(f"{file} exists already. Choose another name.") from None
        except OSError as error:
            raise InvalidInput(f"{file} cannot be written: {error.strerror}.") from error
        return f"The conversation is saved to {file}."

    def _help(self, _rest: str) -> str:
        return HELP

    def _exit(self, _rest: str) -> str:
        self.is_over = True
        return ""

    def _shown_settings(self) -> str:
        params = SamplingParams(**self._given).with_defaults(self._engine.default_sampling_params)
        lines = [f"{name}: {json.dumps(getattr(params, name), default=dict)}" for name in _SETTABLE]
        thinking = {True: "on", False: "off", None: "default"}[self._thinking]
        return "\n".join([*lines, f"{THINKING}: {thinking}"])

    def _system_message(self) -> list[ChatMessage]:
        return [{"role": "system", "content": self._system}] if self._system else []

    def _reply_message(self, parts: list[Delta]) -> ChatMessage:
        reply: ChatMessage = {"role": "assistant", "content": "".join(part.text for part in parts)}
        if reasoning := "".join(part.reasoning for part in parts):
            reply["reasoning"] = reasoning
        return reply

    def _note_omitted(self, num_omitted: int) -> None:
        if num_omitted > self._num_omitted:
            self._note(
                f"The conversation is longer than the model's context: its first {num_omitted} messages are out."
            )
        self._num_omitted = num_omitted


_COMMANDS: Final[Mapping[str, Callable[[ChatSession, str], str]]] = {
    "/help": ChatSession._help,
    "/reset": ChatSession._reset,
    "/system": ChatSession._set_system,
    "/set": ChatSession._set,
    "/save": ChatSession._save,
    "/exit": ChatSession._exit,
    "/quit": ChatSession._exit,
}


def end_note(delta: Delta, how_to_lengthen: str = "") -> str:
    """Returns a sentence about how a reply ended; empty if the model ended it."""
    if delta.finish_reason is FinishReason.LENGTH:
        return f"The reply reached its maximum length. {how_to_lengthen}".rstrip()
    if delta.finish_reason is FinishReason.DEADLINE:
        return "The reply took too long and was cut off."
    return ""


def _value(text: str) -> Any:
    """Reads a value: JSON, or else a string."""
    try:
        return orjson.loads(text)
    except ValueError:
        return text


def _plain(message: ChatMessage) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "token_ids"}
