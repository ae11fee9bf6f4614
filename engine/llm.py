"""The synchronous interface: loads a model, and replies to many prompts or conversations at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, cast

from pydantic import ValidationError
from tqdm import tqdm

from engine.beam_search_params import BeamSearchParams
from engine.chat_options import ChatOptions
from engine.engine import Engine
from engine.errors import EngineStoppedError, InvalidRequestError
from engine.interface import ChatMessage
from engine.outputs import Completion, ModelInfo
from engine.parameter_table import PARAMETERS
from engine.sampling_params import SamplingParams
from engine.settings import EngineSettings

Conversation = Sequence[ChatMessage]
Prompt = str | Sequence[int]


class _LoadingBar:
    """Draws one progress bar for each stage of loading; called from any thread."""

    def __init__(self) -> None:
        self._bars: dict[str, tqdm[Any]] = {}

    def __call__(self, stage: str, fraction: float) -> None:
        bar = self._bars.get(stage)
        if bar is None:
            bar = self._bars[stage] = tqdm(total=100, desc=stage, bar_format="{desc}: {percentage:3.0f}%|{bar}|")
        bar.update(round(100 * fraction) - bar.n)
        if fraction >= 1:
            bar.close()


def _ignore_progress(_stage: str, _fraction: float) -> None:
    """Draws nothing."""


class LLM:
    """A loaded model for scripts: every method blocks until its replies are complete.

    Use it as ``with LLM("models/guide") as llm``, or call :meth:`close`. At the end of a program the model is released
    without either.

    Args:
        model: folder, GGUF file or hub id; default: ``ENGINE_MODEL``.
        show_progress: draw progress bars of loading and generating on stderr.
        **settings: further fields of :class:`engine.EngineSettings`, such as ``max_model_len=4096``. The other fields
            come from ``ENGINE_*`` in the environment.

    Raises:
        ModelLoadError: the model cannot be loaded or cannot run here.
        ValueError: a setting is unknown or has an invalid value.
        RuntimeError: called in a running event loop.
    """

    def __init__(self, model: str | None = None, *, show_progress: bool = True, **settings: Any) -> None:
        _refuse_in_event_loop()
        self.show_progress = show_progress
        self._engine = Engine(_settings(model, settings), progress=_LoadingBar() if show_progress else _ignore_progress)
        asyncio.run(self._engine.start())
        self._closed = False

    def close(self) -> None:
        """Releases the model. Does nothing the second time."""
        if not self._closed:
            _refuse_in_event_loop()
            self._closed = True
            asyncio.run(self._engine.stop())

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """The engine inside, for its state and metrics."""
        return self._engine

    @property
    def info(self) -> ModelInfo:
        """The loaded model."""
        return self._engine.info

    def generate(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Continues texts, without a chat template.

        Returns:
            The completions in the order of the prompts. The ``n`` replies to one prompt are adjacent.

        Args:
            prompts: a text, the token ids of one, or several of these.
            params: one for all, or one for each; default: the model's own.

        Raises:
            InvalidRequestError: a prompt can never be served; the other replies are aborted.
            EngineStoppedError: the model is closed.
            RuntimeError: called in a running event loop.
            ValueError: ``params`` is a sequence of another length than ``prompts``.
        """
        self._check_open()
        listed: list[Prompt] = [prompts] if isinstance(prompts, str) else list(cast("Iterable[Prompt]", prompts))
        if listed and isinstance(listed[0], int):
            listed = [cast("list[int]", listed)]
        return self._engine.generate(listed, params, show_progress=self.show_progress)

    def chat(
        self,
        conversations: Conversation | Iterable[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        options: ChatOptions | Sequence[ChatOptions] | None = None,
    ) -> list[Completion]:
        """Replies to conversations, through the model's chat template.

        Returns:
            The completions in the order of the conversations. The ``n`` replies to one conversation are adjacent.

        Args:
            conversations: a list of messages such as ``{"role": "user", "content": "Hello"}``, or several such lists.
            params, options: one for all, or one for each.

        Raises: as :meth:`generate`.
        """
        self._check_open()
        return self._engine.generate_chats(_listed(conversations), params, options, show_progress=self.show_progress)

    def beam_search(
        self, prompts: Prompt | Iterable[Prompt], search: BeamSearchParams, params: SamplingParams | None = None
    ) -> list[list[Completion]]:
        """Returns the likeliest continuations of each text, best first, with their scores.

        Args:
            prompts: as for :meth:`generate`.
            search: number of beams, length penalty, and when to stop.
            params: ``max_tokens`` and what else :meth:`SamplingParams.check_beam_search` allows. The best ``n`` are
                returned; without ``params`` one for each beam, 16 at most.

        Raises: as :meth:`generate`.
        """
        if params is None:
            params = SamplingParams(n=min(search.width, int(PARAMETERS["n"].high)))
        params = replace(params, beam_search=search)
        found = self.generate(prompts, params)
        return [found[start : start + params.n] for start in range(0, len(found), params.n)]

    def _check_open(self) -> None:
        _refuse_in_event_loop()
        if self._closed:
            raise EngineStoppedError("This LLM is closed. Create another one.")


def _refuse_in_event_loop() -> None:
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(
            "LLM blocks, and an event loop is running here, as in a notebook or a coroutine. Use "
            "`async with Engine(...)` instead, or call it in a thread: await asyncio.to_thread(...)."
        )


def _settings(model: str | None, others: Mapping[str, Any]) -> EngineSettings:
    unknown = sorted(others.keys() - EngineSettings.model_fields.keys())
    if unknown:
        raise ValueError(f"{unknown[0]} is no setting of the engine. EngineSettings lists the settings.")
    try:
        return EngineSettings(**(others if model is None else {**others, "model": model}))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ValueError(f"{name}: {first['msg'].removeprefix('Value error, ')} (got {first['input']!r})") from error


def _listed(conversations: object) -> list[Conversation]:
    """Returns a list of conversations, also where it is a single one."""
    if isinstance(conversations, str | bytes | Mapping) or not isinstance(conversations, Iterable):
        raise InvalidRequestError(
            'chat() takes messages such as {"role": "user", "content": "Hello"}, in a list. For a text, use generate().'
        )
    listed = list(conversations)
    if listed and isinstance(listed[0], Mapping):
        return [cast("Conversation", listed)]
    return listed
