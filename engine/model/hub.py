"""Models of the hub: their files on the way into its cache on this machine, the weights with progress by bytes.

What is read of a model is read from that folder, so a start asks the hub no more than it must.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from engine.errors import ModelLoadError, first_line
from engine.model.adapters import adapter_alone, is_adapter_only
from engine.model.weights import Progress

T = TypeVar("T")

#: Configuration, tokenizer, chat template; the names of files with weights.
_DESCRIPTION = ["*.json", "*.jinja", "*.txt", "*.model", "*.model.v*", "*.tiktoken"]
_POLL_SECONDS = 0.1


def fetch_description(model: str, revision: str | None, progress: Progress) -> Path:
    """The folder in the hub's cache that holds all of a model but, perhaps, its weights.

    Where the hub cannot be reached, what is in the cache has to do.

    Args:
        model: hub id.
        revision: branch, tag or commit; None: the main branch.
        progress: what it raises is raised here at once.

    Raises:
        ModelLoadError: the hub does not know the model or does not give it to us, or cannot be reached, and the cache
            does not have it; or it is none for transformers.
    """

    def fetch() -> Path:
        try:
            return Path(
                snapshot_download(
                    model,
                    revision=revision,
                    allow_patterns=_DESCRIPTION,
                    ignore_patterns=["*/*"],  # other formats of it, in folders of their own
                    tqdm_class=_SilentBar,
                )
            )
        except LocalEntryNotFoundError as error:  # no network
            there = getattr(error, "snapshot_path", None)  # told by huggingface_hub since 2.0
            if there is None or not Path(there, "config.json").is_file():
                raise
            return Path(there)  # of what the cache lacks not everything is needed

    folder = _fetched(model, fetch, lambda: progress(f"Reading {model}", 0.0))
    if not (folder / "config.json").is_file():
        if is_adapter_only(folder):
            raise adapter_alone(model, folder)
        raise ModelLoadError(
            f"{model} has no config.json, so it is no model for transformers. GGUF files are not read."
        )
    return folder


def fetch_weights(model: str, folder: Path, progress: Progress) -> None:
    """Bring the weights into a folder of :func:`fetch_description`.

    Args:
        progress: hears of a download where there is one. What it raises is raised here at once; the file that is under
            way is fetched to its end then, or to that of the program, and stays in the cache if it is whole.

    Raises:
        ModelLoadError: they cannot be had, there are none, or the disk is full.
    """
    missing = [name for name in _weight_files(folder) if not (folder / name).exists()]
    if not missing:
        return
    download = _Download(model, folder.name)
    try:
        _fetched(model, lambda: download.run(missing), lambda: progress(f"Downloading {model}", download.share))
    finally:
        download.is_cancelled = True
    progress(f"Downloading {model}", 1.0)


class _Download:
    """Files of one commit, one after another."""

    def __init__(self, model: str, commit: str) -> None:
        self.is_cancelled = False
        self._model = model
        self._commit = commit
        self._total = 1  # bytes
        self._reached = 0.0  # bytes

    @property
    def share(self) -> float:
        """Of all bytes, 0 to 1; it does not fall."""
        return self._reached / self._total

    def run(self, names: list[str]) -> None:
        files: list[Any] = HfApi().get_paths_info(self._model, names, revision=self._commit)
        if {file.path for file in files} != set(names):
            raise ModelLoadError(
                f"{self._model} has no weights in *.safetensors files, or not all; Deskmate opens no others: they can "
                "run any code. Choose a model that has them, or convert it: model.save_pretrained(folder) in "
                "transformers does."
            )
        self._total = max(sum(file.size for file in files), 1)
        before = 0
        for file in sorted(files, key=lambda file: str(file.path)):
            if self.is_cancelled:
                return
            bar = self._bar(before, before + file.size)
            hf_hub_download(self._model, file.path, revision=self._commit, tqdm_class=bar)
            before += file.size
            self._reached = before

    def _bar(self, before: int, after: int) -> type[_SilentBar]:
        """One for the file that takes the bytes there from one number to another. What was received and what is on the
        disk may both be told, each by a bar of its own."""
        download = self

        class Bar(_SilentBar):
            def update(self, n: float | None = 1) -> bool | None:
                drawn = super().update(n)
                download._reached = min(max(download._reached, before + self.n), after)
                return drawn

        return Bar


def _weight_files(folder: Path) -> list[str]:
    """Those that transformers opens."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        outside = any(Path(name).name != name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{index} is damaged: {first_line(error)}") from error
    if outside:
        raise ModelLoadError(f"{index} names files outside of its folder.")
    return names


def _fetched(model: str, fetch: Callable[[], T], meanwhile: Callable[[], None]) -> T:
    """Call ``fetch`` in a thread that neither the program nor we wait for once ``meanwhile`` has raised.

    The hub's library cannot be interrupted: it waits for locks, for silent servers, and its own threads.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(fetch())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="hub-download", daemon=True).start()
    while wait([outcome], _POLL_SECONDS).not_done:
        meanwhile()
    try:
        return outcome.result()
    except ModelLoadError:
        raise
    except Exception as error:  # of several libraries; each is about the network, the disk or what the hub said
        raise ModelLoadError(
            f"{model} is no folder here and cannot be had from the hub: {_reason(error, model)}"
        ) from error


def _reason(error: Exception, model: str) -> str:
    match error:
        case GatedRepoError():
            return (
                f"its owner gives it to people who asked. Ask at https://huggingface.co/{model}, then set HF_TOKEN to "
                "a token of your account."
            )
        case RepositoryNotFoundError():
            return "there is none of that name, or it is private. For a private one, set HF_TOKEN."
        case RevisionNotFoundError():
            return "it has no such revision."
        case LocalEntryNotFoundError():
            return f"the hub cannot be reached, and it is not in the cache on this machine. {first_line(error)}"
        case _:
            return first_line(error) or type(error).__name__


class _SilentBar(tqdm):  # type: ignore[type-arg]
    """A bar for the hub's library that nobody sees."""

    monitor_interval = 0  # seconds: no thread to draw it

    def __init__(self, *args: Any, **options: Any) -> None:
        options.pop("name", None)  # which some versions of it give to any bar
        super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})
