"""Downloads models from the Hugging Face hub into its local cache; weights are fetched with progress in bytes.

Models are then read from the cache folder, so a start sends no more requests to the hub than necessary.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from engine.errors import ModelLoadError, first_line
from engine.model.adapter_files import adapter_alone, is_adapter_only
from engine.model.gguf.files import files_of_quantization, is_gguf, quantization_in_name
from engine.model.progress import Progress

T = TypeVar("T")

#: Configuration, tokenizer, chat template, and the index that names the weight files.
_DESCRIPTION = ["*.json", "*.jinja", "*.txt", "*.model", "*.model.v*", "*.tiktoken"]
_POLL_SECONDS = 0.1


def fetch_description(model: str, revision: str | None, progress: Progress) -> Path:
    """Fetches everything of a model except its weights, and returns its folder in the hub's cache.

    If the hub cannot be reached, the files in the cache are used.

    Args:
        model: hub id.
        revision: branch, tag or commit; None for the main branch.
        progress: errors that it raises are raised here at once.

    Raises:
        ModelLoadError: the model does not exist, access is denied, or the hub cannot be reached and the cache does not
            have the model; or transformers cannot load it.
    """

    def fetch() -> Path:
        try:
            return _snapshot(model, revision, _DESCRIPTION)
        except LocalEntryNotFoundError as error:  # no network
            there = getattr(error, "snapshot_path", None)  # set by huggingface_hub 2.0 and later
            if there is None or not Path(there, "config.json").is_file():
                raise
            return Path(there)  # the files that the cache lacks may not be needed

    folder = _fetched(model, fetch, lambda: progress(f"Reading {model}", 0.0))
    if not (folder / "config.json").is_file():
        if is_adapter_only(folder):
            raise adapter_alone(model, folder)
        raise ModelLoadError(
            f"{model} has no config.json, so it is not a model of transformers. {_gguf_offer(model, folder)}"
        )
    return folder


def fetch_encoder_description(model: str, revision: str | None, progress: Progress) -> Path:
    """Fetches everything of an encoder except its weights: also the files in the folders of its modules.

    Raises:
        ModelLoadError: as :func:`fetch_description`.
    """
    folder = fetch_description(model, revision, progress)

    def fetch() -> None:
        with suppress(LocalEntryNotFoundError):  # no network: what the cache has is used
            snapshot_download(model, revision=folder.name, allow_patterns=["*/config.json"], tqdm_class=_SilentBar)

    _fetched(model, fetch, lambda: progress(f"Reading {model}", 0.0))
    return folder


def fetch_gguf(model: str, revision: str | None, progress: Progress) -> Path:
    """Downloads the GGUF files of a quantization, if they are missing, and returns the first in the hub's cache.

    If the hub cannot be reached, the files in the cache are used.

    Args:
        model: hub id and quantization, ``org/repo:Q4_K_M``.
        revision: branch, tag or commit; None for the main branch.
        progress: as for :func:`fetch_weights`.

    Raises:
        ModelLoadError: as :func:`fetch_description`, or the repository has no such quantization.
    """
    repository, _, quantization = model.partition(":")

    def look() -> tuple[Path, list[str]]:
        try:
            folder = _snapshot(repository, revision, [])
        except LocalEntryNotFoundError as error:  # no network
            there = getattr(error, "snapshot_path", None)  # as in fetch_description
            if there is None:
                raise
            folder = Path(there)
        try:
            return folder, HfApi().list_repo_files(repository, revision=folder.name)
        except HfHubHTTPError:
            raise
        except Exception as error:  # no network: an error of whichever HTTP library the hub's library uses
            names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
            if not names:
                raise LocalEntryNotFoundError(first_line(error)) from error
            return folder, names

    folder, there = _fetched(repository, look, lambda: progress(f"Reading {model}", 0.0))
    names = files_of_quantization(repository, quantization, there)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        _download(repository, folder, missing, model, progress)
    return folder / names[0]


def _gguf_offer(model: str, folder: Path) -> str:
    """Returns a sentence that says how to name the GGUF files of a repository, if it has some."""
    try:
        names = HfApi().list_repo_files(model, revision=folder.name)
        quantizations = sorted({each for name in names if is_gguf(name) and (each := quantization_in_name(name))})
    except Exception:  # the sentence is an offer; the error that matters is raised with or without it
        quantizations = []
    if not quantizations:
        return "Choose a model that has one."
    return f"It has GGUF files: name a quantization, such as {model}:{quantizations[0]} ({', '.join(quantizations)})."


def fetch_weights(model: str, folder: Path, progress: Progress) -> None:
    """Downloads the weights into a folder of :func:`fetch_description`, if they are missing.

    Args:
        progress: called during a download. Errors that it raises are raised here at once, and the download ends with
            the next bytes. What has arrived stays in the cache.

    Raises:
        ModelLoadError: the weights cannot be downloaded, there are none, or the disk is full.
    """
    missing = [name for name in _weight_files(folder) if not (folder / name).exists()]
    if not missing:
        return
    _download(model, folder, missing, model, progress)


def _snapshot(model: str, revision: str | None, patterns: list[str]) -> Path:
    """Returns the folder of a commit in the cache, with the files at its top that the patterns match."""
    return Path(
        snapshot_download(
            model,
            revision=revision,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],  # subfolders hold other formats of the model
            tqdm_class=_SilentBar,
        )
    )


def _download(model: str, folder: Path, names: list[str], shown: str, progress: Progress) -> None:
    download = _Download(model, folder.name)
    try:
        _fetched(model, lambda: download.run(names), lambda: progress(f"Downloading {shown}", download.share))
    finally:
        download.is_cancelled = True
    progress(f"Downloading {shown}", 1.0)


class _Download:
    """Downloads files of one commit, one after another."""

    def __init__(self, model: str, commit: str) -> None:
        self.is_cancelled = False
        self._model = model
        self._commit = commit
        self._total = 1  # bytes
        self._reached = 0.0  # bytes

    @property
    def share(self) -> float:
        """Downloaded share of all bytes, 0 to 1; it never decreases."""
        return self._reached / self._total

    def run(self, names: list[str]) -> None:
        files: list[Any] = HfApi().get_paths_info(self._model, names, revision=self._commit)
        if {file.path for file in files} != set(names):
            raise ModelLoadError(
                f"{self._model} has no weights in *.safetensors files, or not all of them. Deskmate opens no other "
                "weight files, because they can run arbitrary code, except GGUF files, if their quantization is named "
                f"({self._model}:Q4_K_M). Choose a model that has them, or convert it with "
                "model.save_pretrained(folder) in transformers."
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
        """Returns a progress bar class for a file that takes the byte count from ``before`` to ``after``.

        The hub's library may report bytes received and bytes on disk, each with its own bar.
        """
        download = self

        class Bar(_SilentBar):
            def update(self, n: float | None = 1) -> bool | None:
                if download.is_cancelled:
                    raise _CancelledError
                drawn = super().update(n)
                download._reached = min(max(download._reached, before + self.n), after)
                return drawn

        return Bar


class _CancelledError(Exception):
    """Ends a download that no caller waits for any more."""


def _weight_files(folder: Path) -> list[str]:
    """Returns the names of the weight files that transformers opens."""
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
    """Calls ``fetch`` in a daemon thread and ``meanwhile`` until it is done; if ``meanwhile`` raises, stops waiting.

    The hub's library cannot be interrupted: it waits for locks, for unresponsive servers, and for its own threads.
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
    except Exception as error:  # from several libraries, about the network, the disk or the hub's response
        raise ModelLoadError(
            f"{model} is not a local folder and cannot be fetched from the hub: {_reason(error, model)}"
        ) from error


def _reason(error: Exception, model: str) -> str:
    match error:
        case GatedRepoError():
            return (
                f"it is gated. Request access at https://huggingface.co/{model}, then set HF_TOKEN to a token of your "
                "account."
            )
        case RepositoryNotFoundError():
            return "there is no model of that name, or it is private. For a private model, set HF_TOKEN."
        case RevisionNotFoundError():
            return "it has no such revision."
        case LocalEntryNotFoundError():
            return f"the hub cannot be reached, and it is not in the cache on this machine. {first_line(error)}"
        case _:
            return first_line(error) or type(error).__name__


class _SilentBar(tqdm):  # type: ignore[type-arg]
    """An invisible progress bar for the hub's library."""

    monitor_interval = 0  # seconds; 0 starts no monitor thread

    def __init__(self, *args: Any, **options: Any) -> None:
        options.pop("name", None)  # some versions of the library pass it to every bar
        super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})
