"""Where a benchmark's result is written: to the file that is named, or into the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import result_files
from benchmarks.result_files import write_result


def test_a_result_goes_to_the_file_that_is_named(tmp_path: Path) -> None:
    assert write_result({"flat": True}, "soak", tmp_path / "mine.json") == tmp_path / "mine.json"
    assert json.loads((tmp_path / "mine.json").read_text()) == {"flat": True}


@pytest.mark.parametrize("is_named", [True, False])
def test_a_result_gets_a_name_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool) -> None:
    monkeypatch.setattr(result_files, "RESULTS", tmp_path if not is_named else tmp_path / "elsewhere")
    file = write_result({}, "soak", tmp_path if is_named else None)
    assert (file.parent, file.name[10:]) == (tmp_path, "-soak.json")
