"""Builds the prompt for a message: as much of the conversation as fits the model's context."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.context_trimming import ContextBudget, ContextPolicy, count_turns_to_omit
from app.domain.prompting import PathMessage, chat_messages, past_turns
from app.errors import ContextTooLong
from app.store.chat.turn_contexts import TurnContext
from app.turns.engine_errors import as_app_error, context_too_long
from engine import Caller, ChatEngine, ChatMessage, ContextLengthError, EngineError, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt that the engine accepts."""

    messages: list[ChatMessage]
    tokens: int
    omitted_messages: int  #: oldest messages that did not fit
    context_length: int  #: tokens, prompt and reply together


class Prompter:
    """Builds prompts for one engine under one context policy."""

    def __init__(self, engine: ChatEngine, policy: ContextPolicy) -> None:
        self._engine = engine
        self._policy = policy

    async def prompt(
        self,
        system_prompt: str,
        context: TurnContext,
        text: str,
        params: SamplingParams,
        partial_reply: PathMessage | None = None,
        *,
        caller: Caller | None = None,
        shares_system_prompt: bool = False,
    ) -> Prompt:
        """Builds the prompt for a reply to ``text`` after ``context``, or for the rest of ``partial_reply``.

        Args:
            shares_system_prompt: the system prompt is the desk's own text, word for word, and holds no user's text.

        Raises:
            ContextTooLong: the prompt does not fit even with all old turns left out, or the policy forbids leaving
                turns out.
            InvalidInput, Overloaded, EngineUnavailable: the engine rejected the prompt.
        """
        turns = past_turns(context.path)
        counted: dict[int, int] = {}

        def messages(left_out: int) -> list[ChatMessage]:
            made = chat_messages(system_prompt, turns[left_out:], text, partial_reply)
            if caller is not None and shares_system_prompt and made[0]["role"] == "system":
                made[0]["shared"] = True
            return made

        async def count(left_out: int) -> int:
            if left_out not in counted:
                counted[left_out] = await self._count(messages(left_out), params, caller)
            return counted[left_out]

        context_length = self._engine.info.max_model_len
        defaults = self._engine.default_sampling_params
        budget = ContextBudget(context_length, params.max_tokens or defaults.max_tokens)
        left_out = 0
        if self._policy == "drop_oldest":
            # With another model or context length the number already left out is no guide: more may fit, or less.
            already = context.omitted_messages // 2 if context.context_length == context_length else 0
            left_out = await count_turns_to_omit(count, len(turns), already=already, budget=budget)
        tokens = await count(left_out)
        if not budget.holds(tokens):
            raise await self._refusal(tokens, context_length, system_prompt, params, with_turns=left_out < len(turns))
        return Prompt(
            messages=messages(left_out), tokens=tokens, omitted_messages=2 * left_out, context_length=context_length
        )

    async def _count(self, messages: list[ChatMessage], params: SamplingParams, caller: Caller | None = None) -> int:
        try:
            return await self._engine.check_chat(messages, params, caller=caller)
        except ContextLengthError as error:
            return error.prompt_tokens
        except (EngineError, ValueError) as error:
            raise as_app_error(error) from error

    async def _refusal(
        self, tokens: int, context_length: int, system_prompt: str, params: SamplingParams, *, with_turns: bool
    ) -> ContextTooLong:
        """The error that names the part that is too long: the system prompt, the message, or the whole conversation."""
        subject, advice = "This message is", "Shorten it"
        if system_prompt.strip():
            alone = await self._count(chat_messages(system_prompt, (), "."), params)
            if alone >= context_length:
                advice = "Shorten it in the settings, or choose another"
                return context_too_long(alone, context_length, subject="The system prompt alone is", advice=advice)
            subject = "With the system prompt, this message is"
        if with_turns:
            subject, advice = "With the conversation so far, this message is", "Shorten it, or start a new chat"
        return context_too_long(tokens, context_length, subject=subject, advice=advice)
