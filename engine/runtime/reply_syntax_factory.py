"""Decides how the reply to a chat is split into thinking, calls and answer, and which grammar holds its calls."""

from __future__ import annotations

from collections.abc import Sequence

from engine.chat_options import ChatOptions, NamedTool, ToolChoiceMode
from engine.errors import InvalidRequestError
from engine.runtime.rendered_chat import ReplySyntax
from engine.runtime.reply_factory import ReplyFactory
from engine.structured_output import StructuredOutput, StructureKind
from engine.text.chat_template import ChatTemplate
from engine.text.reply_formats.grammar import is_constrainable, write_grammar
from engine.text.reply_formats.reply_format import ReplyFormat

MAX_OPENING_TOKENS = 16
"""Tokens at the end of a prompt in which the template opens the thinking."""


class ReplySyntaxFactory:
    """Makes the syntax and the call grammar of replies of one model, from what their requests ask for.

    Args:
        template: the model's chat template, which may open the thinking.
        reply_format: in which the model writes thinking and calls.
        replies: compiles grammars.
    """

    def __init__(self, template: ChatTemplate, reply_format: ReplyFormat, replies: ReplyFactory) -> None:
        self._template = template
        self._reply_format = reply_format
        self._replies = replies

    def make_call_grammar(self, options: ChatOptions, prompt: Sequence[int]) -> StructuredOutput | None:
        """Returns the grammar of a reply that must call a tool, or whose calls are held to strict tools' schemas.

        Raises:
            InvalidRequestError: the reply must call a tool, and the model's format cannot be constrained.
        """
        chosen = options.tool_choice
        is_required = chosen is ToolChoiceMode.REQUIRED or isinstance(chosen, NamedTool)
        is_strict = chosen is ToolChoiceMode.AUTO and any(tool.strict for tool in options.tools)
        if not is_required and not is_strict:
            return None
        if not is_constrainable(self._reply_format):
            if is_strict:
                return None
            raise InvalidRequestError(
                "tool_choice cannot make this model call a tool: its format of tool calls has no grammar here. Use "
                '"auto".'
            )
        calls = self._reply_format.calls
        if is_strict and calls is not None and calls.starts_with:
            return None  # nothing marks where a call begins
        tools = [tool for tool in options.tools if not isinstance(chosen, NamedTool) or tool.name == chosen.name]
        try:
            grammar = write_grammar(
                self._reply_format,
                tools,
                self._replies.special_tokens,
                is_thinking=self.ends_in_thinking(prompt),
                is_required=is_required,
                is_parallel=options.parallel_tool_calls,
            )
        except ValueError as error:
            raise InvalidRequestError(f"tools hold parameters that no call can be held to: {error}.") from error
        return StructuredOutput(StructureKind.GRAMMAR, grammar)

    def check_call_grammar(self, grammar: StructuredOutput) -> None:
        """Compiles a grammar of :meth:`make_call_grammar`, so that it is refused before anything is scheduled.

        Raises:
            InvalidRequestError: the tools' parameters cannot be held to.
        """
        try:
            self._replies.grammars.compile(grammar)
        except InvalidRequestError as error:
            reason = str(error).partition("cannot be used: ")[2] or str(error)
            raise InvalidRequestError(f"tools hold parameters that no call can be held to: {reason}") from error

    def make_syntax(
        self, prompt: Sequence[int], options: ChatOptions, *, is_structure_of_answer: bool = True
    ) -> ReplySyntax | None:
        """Returns how the reply to a rendered conversation is split; None if it stays as it is.

        Args:
            prompt: its token ids.
            is_structure_of_answer: the form of the reply, if it has one, is the answer's, not that of calls.

        Raises:
            InvalidRequestError: the limit of the thinking is below 0.
        """
        is_offered = options.tool_choice is not ToolChoiceMode.NONE
        offered = {tool.name: tool.parameters for tool in options.tools if is_offered}
        known = self._reply_format
        splits = known.has_channels or known.reasoning is not None or (known.calls is not None and bool(offered))
        if (limit := options.max_thinking_tokens) is not None and limit < 0:
            raise InvalidRequestError(f"max_thinking_tokens must be at least 0 (got {limit}).")
        if not options.parse_reply or not splits:
            return None
        is_thinking = self.ends_in_thinking(prompt)
        return ReplySyntax(
            known,
            is_thinking,
            offered,
            options.stop_in_reasoning,
            limit,
            is_structure_of_answer=is_structure_of_answer,
            may_think=not is_thinking and self._may_open_thinking(prompt, options),
        )

    def ends_in_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether a rendered conversation ends with thinking that is open."""
        reasoning = self._reply_format.reasoning
        end = self._template.decode(prompt[-MAX_OPENING_TOKENS:])
        return reasoning is not None and end.rstrip().endswith(reasoning.open.strip())

    def _may_open_thinking(self, prompt: Sequence[int], options: ChatOptions) -> bool:
        """Whether the model may open thinking itself: neither the request nor the prompt rules it out."""
        if self._reply_format.has_channels:
            return True  # the answer has a header in any case
        tags = self._reply_format.reasoning
        if tags is None or options.thinking is False or options.reasoning_effort == "none":
            return False
        is_closed = self._template.decode(prompt[-MAX_OPENING_TOKENS:]).rstrip().endswith(tags.close.strip())
        return not is_closed and options.max_thinking_tokens != 0
