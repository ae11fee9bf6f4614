"""Models of the hub: their files on the way into its cache on this machine, the weights with progress by bytes.

What is read of a model is read from that folder, so a start asks the hub no more than it must.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from engine.errors import ModelLoadError, first_line
from engine.model.weights import Progress

#: Configuration, tokenizer, chat template.
_DESCRIPTION = ["*.json", "*.jinja", "*.txt", "*.model", "*.model.v*", "*.tiktoken"]
_WEIGHTS = ["*.safetensors"]
_LEFT_OUT = ["*/*", "consolidated*"]  # the same weights once more, in other formats


def fetch_description(model: str, revision: str | None) -> Path:
    """The folder in the hub's cache that holds all of a model but, perhaps, its weights.

    Where the hub cannot be reached, what is in the cache has to do.

    Args:
        model: hub id.
        revision: branch, tag or commit; None: the main branch.

    Raises:
        ModelLoadError: the hub does not know the model or does not give it to us, or cannot be reached, and nothing
            of it is in the cache; or it is none for transformers.
    """
    folder = _fetched(model, partial(_snapshot, model, revision=revision, allow_patterns=_DESCRIPTION))
    if not (folder / "config.json").is_file():
        raise ModelLoadError(
            f"{model} has no config.json, so it is no model for transformers. GGUF files are not read."
        )
    return folder


def fetch_weights(model: str, folder: Path, progress: Progress) -> None:
    """Bring the weights into a folder of :func:`fetch_description`. Of a download that ends early whole files stay.

    Args:
        progress: hears of a download only where there is one. What it raises ends the download.

    Raises:
        ModelLoadError: they cannot be had, there are none, or the disk is full.
    """
    snapshot = partial(_snapshot, model, revision=folder.name, allow_patterns=_WEIGHTS)

    def fetch() -> Path:
        _fetch_one_by_one(model, _missing(snapshot), progress)
        return Path(snapshot())

    _fetched(model, fetch)
    if not any(folder.glob("*.safetensors")):
        raise ModelLoadError(
            f"{model} has no weights in *.safetensors files, and Deskmate opens no others: they can run any code. "
            "Choose a model that has them, or convert it: model.save_pretrained(folder) in transformers does."
        )


def _snapshot(model: str, **options: Any) -> Any:
    return snapshot_download(model, ignore_patterns=_LEFT_OUT, tqdm_class=_NotDrawn, **options)


def _fetched(model: str, fetch: Callable[[], Any]) -> Path:
    try:
        return Path(fetch())
    except GatedRepoError as error:
        reason = (
            f"its owner gives it to people who asked. Ask at https://huggingface.co/{model}, then set HF_TOKEN to a "
            "token of your account."
        )
        raise _cannot_be_had(model, reason) from error
    except RepositoryNotFoundError as error:
        reason = "there is none of that name, or it is private. For a private one, set HF_TOKEN."
        raise _cannot_be_had(model, reason) from error
    except RevisionNotFoundError as error:
        raise _cannot_be_had(model, "it has no such revision.") from error
    except LocalEntryNotFoundError as error:
        reason = f"the hub cannot be reached, and not all of it is in the cache on this machine. {first_line(error)}"
        raise _cannot_be_had(model, reason) from error
    except (OSError, ValueError) as error:
        raise _cannot_be_had(model, first_line(error)) from error


def _cannot_be_had(model: str, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{model} is no folder here and cannot be had from the hub: {reason}")


def _missing(snapshot: Callable[..., Any]) -> list[Any]:
    """The files to fetch, by name, with size and commit."""
    try:
        files = [file for file in snapshot(dry_run=True) if file.will_download]
    except OSError:
        return []  # the hub does not answer, or refuses: asked for the folder, it says why, or gives what is there
    return sorted(files, key=lambda file: file.filename)


def _fetch_one_by_one(model: str, files: list[Any], progress: Progress) -> None:
    # All at once they would be fetched by threads that a program must wait for before it ends.
    counted = _Counted(sum(file.file_size for file in files), lambda share: progress(f"Downloading {model}", share))
    for file in files:
        counted.begin(file.file_size)
        hf_hub_download(model, file.filename, revision=file.commit_hash, tqdm_class=_bar(counted))


class _Counted:
    """The share of all bytes that is there, 0 to 1; it does not fall."""

    def __init__(self, total: int, report: Callable[[float], None]) -> None:
        self._total = max(total, 1)
        self._report = report
        self._begun = self._before = self._reached = 0.0

    def begin(self, size: int) -> None:
        """The next file."""
        self._before, self._begun = self._begun, self._begun + size
        self.reached(0)

    def reached(self, size: float) -> None:
        """Of the file. What was received and what is on the disk may both be told."""
        self._reached = min(max(self._reached, self._before + size), self._begun)
        self._report(self._reached / self._total)


class _NotDrawn(tqdm):  # type: ignore[type-arg]
    """A bar for the hub's library that nobody sees."""

    monitor_interval = 0  # seconds: no thread to draw it

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})


def _bar(counted: _Counted) -> type[_NotDrawn]:
    """One whose bytes are counted."""

    class Bar(_NotDrawn):
        def update(self, n: float | None = 1) -> bool | None:
            drawn = super().update(n)
            counted.reached(self.n)
            return drawn

    return Bar
