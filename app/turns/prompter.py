"""Prepares the prompt for a message: as much of the conversation as fits the model's context."""

from __future__ import annotations

from dataclasses import replace

from app.domain.prompting import PathMessage, WithSources, chat_messages, past_turns
from app.errors import AppError, InvalidInput
from app.settings import ContextPolicy
from app.store.chat.turn_contexts import TurnContext
from app.turns.engine_errors import as_app_error, context_too_long
from engine import (
    Caller,
    ChatEngine,
    ChatOptions,
    ContextLengthError,
    EngineError,
    PreparedPrompt,
    SamplingParams,
    Truncation,
)


class Prompter:
    """Prepares prompts for one engine under one context policy.

    Args:
        with_sources: puts the sources of past replies into the messages that these answer. They stay in the history:
            later prompts continue the earlier ones, which the prefix cache holds, and a reply's numbers keep their
            meaning for the model. With its turn, they are left out where the context has no more room.
    """

    def __init__(self, engine: ChatEngine, policy: ContextPolicy, with_sources: WithSources) -> None:
        self._engine = engine
        self._policy = policy
        self._with_sources = with_sources

    async def prepare(
        self,
        system_prompt: str,
        context: TurnContext,
        text: str,
        params: SamplingParams,
        partial_reply: PathMessage | None = None,
        *,
        caller: Caller | None = None,
        shares_system_prompt: bool = False,
        previous: PreparedPrompt | None = None,
        options: ChatOptions | None = None,
        may_restore: bool = True,
    ) -> PreparedPrompt:
        """Prepares the prompt for a reply to ``text`` after ``context``, or for the rest of ``partial_reply``.

        Args:
            shares_system_prompt: the system prompt is the desk's own text, word for word, and holds no user's text.
            previous: a prompt of the conversation's, which this one may continue.
            options: the tools it is offered, the adapter, and how the model thinks. That is without effect where it
                cannot think: settings outlive the model.
            may_restore: messages that were left out before may be in it again, if there is room.

        Raises:
            ContextTooLong: the prompt does not fit even with all old turns left out, or the policy forbids leaving
                turns out.
            InvalidInput: the adapter is not loaded, or the engine rejected the prompt.
            Overloaded, EngineUnavailable: the engine rejected the prompt.
        """
        if options is not None and options.adapter is not None and options.adapter not in self._engine.info.adapters:
            raise InvalidInput(
                f"The adapter {options.adapter} of this chat isn't loaded. Choose another, or none, in the settings."
            )
        turns = past_turns(context.path, self._with_sources)
        with_calls = self._engine.info.can_call_tools
        messages = chat_messages(system_prompt, turns, text, partial_reply, with_calls=with_calls)
        if caller is not None and shares_system_prompt and messages[0]["role"] == "system":
            messages[0]["shared"] = True
        if options is not None and not self._engine.info.can_think:
            options = replace(options, thinking=None, max_thinking_tokens=None)
        truncation = None
        if self._policy == "drop_oldest":
            # With another model or context length the number already left out is no guide: more may fit, or less.
            same = context.context_length == self._engine.info.max_model_len
            truncation = Truncation(context.omitted_messages if same else 0, may_restore=may_restore)
        try:
            return await self._engine.prepare(
                messages, params, caller=caller, truncation=truncation, previous=previous, options=options
            )
        except ContextLengthError as error:
            with_turns = bool(turns) and truncation is None
            raise await self._refusal(error, system_prompt, params, with_turns=with_turns) from error
        except (EngineError, ValueError) as error:
            raise as_app_error(error) from error

    async def _refusal(
        self, refused: ContextLengthError, system_prompt: str, params: SamplingParams, *, with_turns: bool
    ) -> AppError:
        """The error that names the part that is too long: the system prompt, the message, or the whole conversation."""
        subject, advice = "This message is", "Shorten it"
        if system_prompt.strip():
            try:
                await self._engine.prepare(chat_messages(system_prompt, (), "."), params)
            except ContextLengthError as error:
                tokens, advice = error.prompt_tokens, "Shorten it in the settings, or choose another"
                return context_too_long(
                    tokens, error.max_model_len, subject="The system prompt alone is", advice=advice
                )
            except (EngineError, ValueError) as error:
                return as_app_error(error)
            subject = "With the system prompt, this message is"
        if with_turns:
            subject, advice = "With the conversation so far, this message is", "Shorten it, or start a new chat"
        return context_too_long(refused.prompt_tokens, refused.max_model_len, subject=subject, advice=advice)
