"""The in-process engine's prompts: token ids with parameters, and the prepared conversation that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import ReferenceType

from engine.interface import PreparedPrompt
from engine.sampling_params import SamplingParams
from engine.text.chat_template import RenderedPrompt
from engine.text.reply_formats.notations import Schemas
from engine.text.reply_formats.parser import ReplyParser
from engine.text.reply_formats.reply_format import ReplyFormat

if TYPE_CHECKING:
    from engine.runtime.request_processor import RequestProcessor


@dataclass(frozen=True, slots=True)
class ReplySyntax:
    """How the reply to a prompt is split into its parts; the arguments are those of :class:`ReplyParser`."""

    reply_format: ReplyFormat
    is_thinking: bool
    tools: Schemas
    stop_in_reasoning: bool
    max_thinking_tokens: int | None = None
    is_structure_of_answer: bool = True  #: ``params.structured`` describes the answer alone, not the thinking before it
    may_think: bool = False  #: the model may open the thinking itself

    @property
    def thinking_format(self) -> ReplyFormat | None:
        """The format in which a reply may think before its structure, if the model opens the thinking itself."""
        return self.reply_format if self.is_structure_of_answer and self.may_think else None

    def make_parser(self) -> ReplyParser:
        """Makes the parser of one reply."""
        return ReplyParser(self.reply_format, is_thinking=self.is_thinking, tools=self.tools)


class TokenizedPrompt(NamedTuple):
    """A prompt's token ids with its resolved parameters."""

    token_ids: list[int]
    params: SamplingParams
    partial_reply: Sequence[int] = ()  #: the last token ids, where they belong to a reply to continue
    num_shared: int = 0  #: number of first token ids that depend on no user's text
    syntax: ReplySyntax | None = None  #: how the reply is split; None leaves it as it is


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RenderedChat(PreparedPrompt):
    """A prepared conversation with its token ids, which only the model that they were made for can read."""

    prompt: TokenizedPrompt
    rendered: RenderedPrompt  #: the prompt without a partial reply
    renderer: ReferenceType[RequestProcessor]  #: weak, because a prepared prompt must not keep a swapped model's parts

    def is_by(self, renderer: RequestProcessor) -> bool:
        """Whether ``renderer`` made the token ids; another one may belong to another model."""
        return self.renderer() is renderer
