"""Finds the models on this machine. Reads headers only, follows no link out of a folder, and never raises."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from app.models.checkpoint_header import read_checkpoint
from app.models.folders import ModelFolder
from app.models.local_model import LocalModel, ModelError, Source, Weights
from engine import ModelLoadError, generation_config_path, quantization_in_name, summarize_gguf

MAX_DEPTH = 4
"""Folders below the one that is searched. LM Studio's files lie at publisher/model/file."""
MAX_ENTRIES = 20_000
"""Files and folders looked at below one folder. The rest is left out, and a note says so."""
MAX_MANIFEST_BYTES = 2**20
DOWNLOADS = ".downloads"
"""Folder in the models folder for unfinished downloads."""

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_ADAPTER = "application/vnd.ollama.image.adapter"


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found, and what could not be searched."""

    models: list[LocalModel] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  #: sentences

    def find(self, name: str) -> LocalModel | None:
        """Returns the model with this id, name or target; of several, the one that was found first."""
        for names in ("id", "name", "target"):
            for model in self.models:
                if getattr(model, names) == name:
                    return model
        return None


def find_models(folders: list[ModelFolder]) -> Scan:
    """Searches the folders, in their order. A damaged model is listed with what is wrong with it."""
    scan = Scan()
    readers: dict[Source, Callable[[Path], Iterator[LocalModel]]] = {
        Source.BUNDLED: _bundled,
        Source.MODELS_DIR: lambda path: _tree(path, Source.MODELS_DIR),
        Source.LM_STUDIO: lambda path: _tree(path, Source.LM_STUDIO),
        Source.HUB_CACHE: _hub_cache,
        Source.OLLAMA: _ollama,
    }
    ids: set[str] = set()
    for folder in folders:
        try:
            for model in readers[folder.source](folder.path):
                if model.id not in ids:
                    ids.add(model.id)
                    scan.models.append(model)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            scan.notes.append(f"{folder.path} is no folder, so it was not searched for models.")
        except OSError as error:
            scan.notes.append(f"{folder.path} was not searched for models: {error.strerror or error}.")
        except _TooManyFiles:
            scan.notes.append(f"{folder.path} has more than {MAX_ENTRIES:,} files: only these were looked at.")
    return scan


class _TooManyFiles(Exception):
    pass


# ---- one model


def _bundled(path: Path) -> Iterator[LocalModel]:
    if (path / "config.json").exists():
        model = _checkpoint(path, _Inside(path), "guide", Source.BUNDLED, str(path), (path,))
        if model is not None:
            yield model


def _checkpoint(
    folder: Path, inside: _Inside, name: str, source: Source, target: str, paths: tuple[Path, ...]
) -> LocalModel | None:
    """Returns the model in a folder with a config.json; None if it is no language model that can chat."""
    weights, problem, size = None, None, 0
    try:
        files = {path.name: path for path in folder.iterdir() if not path.is_dir()}
        for file in files.values():
            if not inside(file):
                raise ModelError(f"It has a link out of the folder, which is not followed: {_text(file.name)}.")
        size = sum(file.stat().st_size for file in files.values())
        weights = read_checkpoint(files)
        if weights is None:
            return None
    except ModelError as error:
        problem = str(error)
    except OSError as error:
        problem = f"It cannot be read: {error.strerror or error}."
    return LocalModel(
        name=_text(name), source=source, target=target, size_bytes=size, weights=weights, problem=problem, paths=paths
    )


def _gguf(files: list[Path], name: str, source: Source, target: str, paths: tuple[Path, ...]) -> LocalModel | None:
    """Returns the model in a GGUF file, or in the parts of one; None if it is no language model that can chat."""
    weights, problem = None, None
    size = 0
    try:
        size = sum(file.stat().st_size for file in files)
        summary = summarize_gguf(files[0])
        if not summary.can_chat:
            return None
        weights = Weights(
            format=f"GGUF {summary.number_format}",
            memory_bytes=summary.nbytes,
            bytes_per_token=summary.nbytes_per_token,
            context_length=summary.context_length,
        )
    except ModelLoadError as error:
        problem = _text(str(error).replace(str(files[0]), "The file").replace(f"{files[0].parent}", "The folder"))
    except OSError as error:
        problem = f"It cannot be read: {error.strerror or error}."
    return LocalModel(
        name=_text(name), source=source, target=target, size_bytes=size, weights=weights, problem=problem, paths=paths
    )


def _text(name: str) -> str:
    """A file's name as text: its bytes need not be any, and control characters would break a terminal's lines."""
    decoded = name.encode(errors="surrogateescape").decode(errors="replace")
    return "".join(letter if letter.isprintable() else "�" for letter in decoded)


# ---- folders of models


def _tree(root: Path, source: Source) -> Iterator[LocalModel]:
    """Finds GGUF files and folders with a config.json, at any place below ``root``."""
    inside = _Inside(root)
    count = 0
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            if folder == root:
                raise
            continue  # a folder below that this user may not read
        count += len(entries)
        if count > MAX_ENTRIES:
            raise _TooManyFiles
        names = {entry.name for entry in entries}
        if depth > 0 and "config.json" in names and inside(folder / "config.json"):
            name = folder.relative_to(root).as_posix()
            model = _checkpoint(folder, inside, name, source, str(folder), (folder,))
            if model is not None:
                yield model
        ggufs = []
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    waiting.append((path, depth + 1))
            elif entry.name.lower().endswith(".gguf") and inside(path):
                ggufs.append(path)
        yield from _gguf_models(
            ggufs, source, lambda path: path.with_name(_stem(path.name)).relative_to(root).as_posix(), str
        )


def _gguf_models(
    files: list[Path], source: Source, name_of: Callable[[Path], str], target_of: Callable[[Path], str]
) -> Iterator[LocalModel]:
    """Puts the parts of split files together."""
    parts: dict[str, list[Path]] = {}
    for file in files:
        parts.setdefault(_stem(file.name), []).append(file)
    for found in parts.values():
        found.sort()
        name = name_of(found[0])
        beside = [path for path in [generation_config_path(found[0])] if path.exists()]
        model = _gguf(found, name, source, target_of(found[0]), (*found, *beside))
        if model is not None:
            yield model


def _stem(name: str) -> str:
    """Returns a GGUF file's name without its suffix and without its part's number."""
    split = _SPLIT.fullmatch(name)
    return split["stem"] if split else name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def _hub_cache(root: Path) -> Iterator[LocalModel]:
    """Finds the models of https://huggingface.co/docs/huggingface_hub/guides/manage-cache."""
    inside = _Inside(root)
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if not entry.name.startswith("models--") or not entry.is_dir(follow_symlinks=False):
            continue
        repository = Path(entry.path)
        name = entry.name.removeprefix("models--").replace("--", "/")
        try:
            snapshot = _snapshot(repository)
            if snapshot is None:
                continue
            files = [file for file in sorted(snapshot.iterdir()) if inside(file)]
        except OSError as error:
            problem = f"It cannot be read: {error.strerror or error}."
            yield LocalModel(
                name=name, source=Source.HUB_CACHE, target=name, size_bytes=0, problem=problem, paths=(repository,)
            )
            continue
        names = {file.name for file in files}
        ggufs = [file for file in files if file.name.lower().endswith(".gguf")]
        if "config.json" in names and not ggufs:
            model = _checkpoint(snapshot, inside, name, Source.HUB_CACHE, name, (repository,))
            if model is not None:
                yield model
        in_repository = partial(_in_repository, name, [file.name for file in ggufs])
        for model in _gguf_models(ggufs, Source.HUB_CACHE, in_repository, in_repository):
            yield replace(model, paths=(repository,))


def _in_repository(repository: str, names: list[str], file: Path) -> str:
    """Returns what a GGUF file of the hub is called: by its quantization, or by its name where that tells none."""
    stem = _stem(file.name)
    quantization = quantization_in_name(file.name)
    alike = {_stem(name) for name in names if quantization_in_name(name) == quantization}
    return f"{repository}:{stem if quantization is None or len(alike) > 1 else quantization}"


def _snapshot(repository: Path) -> Path | None:
    """Returns the folder of the main branch's commit, else of the newest one; None if there is none."""
    snapshots = repository / "snapshots"
    try:
        commit = (repository / "refs" / "main").read_text(encoding="ascii")[:64].strip()
        if re.fullmatch(r"[0-9a-f]{40}", commit) and (snapshots / commit).is_dir():
            return snapshots / commit
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    try:
        found = [Path(entry.path) for entry in os.scandir(snapshots) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return None
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _ollama(root: Path) -> Iterator[LocalModel]:
    """Finds the models of Ollama's manifests. Its blobs are GGUF files without a suffix, named by their hashes."""
    manifests = root / "manifests"
    inside = _Inside(root)
    os.scandir(root).close()  # raises if the folder cannot be read, where walk would find nothing
    for folder, folders, files in os.walk(manifests):
        folders.sort()
        for file in sorted(files):
            manifest = Path(folder, file)
            if not inside(manifest):
                continue
            name = _ollama_name(manifest.relative_to(manifests))
            model = _ollama_model(root, manifest, name, inside)
            if model is not None:
                yield model


def _ollama_name(path: Path) -> str:
    """Returns a model's name as Ollama writes it, such as llama3.2:1b, of registry/namespace/model/tag."""
    *place, model, tag = path.parts if len(path.parts) > 1 else (path.name, "latest")
    if place[:1] == ["registry.ollama.ai"]:
        place = place[1:]
    if place[:1] == ["library"]:
        place = place[1:]
    return f"{'/'.join([*place, model])}:{tag}"


def _ollama_model(root: Path, manifest: Path, name: str, inside: _Inside) -> LocalModel | None:
    def broken(problem: str) -> LocalModel:
        return LocalModel(name=name, source=Source.OLLAMA, target=str(manifest), size_bytes=0, problem=problem)

    try:
        if manifest.stat().st_size > MAX_MANIFEST_BYTES:
            return broken("Ollama's manifest of it is damaged.")
        layers = json.loads(manifest.read_bytes())["layers"]
        kinds = [(str(layer["mediaType"]), str(layer["digest"])) for layer in layers]
    except OSError as error:
        return broken(f"It cannot be read: {error.strerror or error}.")
    except (ValueError, KeyError, TypeError, RecursionError):
        return broken("Ollama's manifest of it is damaged.")
    digests = [digest for kind, digest in kinds if kind == _OLLAMA_MODEL]
    if not digests:
        return None  # a model that Ollama runs on another server, or an embedding's own format
    if any(kind == _OLLAMA_ADAPTER for kind, _ in kinds):
        return broken("It is a model with an adapter, which Deskmate does not apply.")
    if not _DIGEST.fullmatch(digests[0]):
        return broken("Ollama's manifest of it is damaged.")
    blob = root / "blobs" / digests[0].replace(":", "-")
    if not blob.exists():
        return broken("Its weights are missing. Get it again with ollama pull.")
    if not inside(blob):
        return broken("Its weights are a link to a file outside of Ollama's folder, which is not followed.")
    return _gguf([blob], name, Source.OLLAMA, str(blob), ())


class _Inside:
    """Whether a path, all its links followed, is a regular file inside ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)

    def __call__(self, path: Path) -> bool:
        try:
            real = os.path.realpath(path, strict=True)
            is_file = stat.S_ISREG(os.stat(real).st_mode)
        except OSError:  # also a loop of links
            return False
        return is_file and real.startswith(self._root.rstrip(os.sep) + os.sep)
