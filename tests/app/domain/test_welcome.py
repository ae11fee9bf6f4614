"""What an empty chat shows: the groups of ``prompts/examples.yaml``."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import StartupError
from app.templates.files import read_welcome

LAST = "- examples: [Hello]\n"


def write(folder: Path, text: str) -> Path:
    file = folder / "examples.yaml"
    file.write_text(text)
    return file


def test_each_model_gets_the_first_group_that_fits_it(tmp_path: Path) -> None:
    write(tmp_path, "- {for: guide, examples: [A]}\n- {max_parameters: 1_000, examples: [B]}\n- examples: [C]\n")
    welcome = read_welcome(tmp_path)

    def example(size: int, *, is_guide: bool = False) -> str:
        return welcome.find_group(is_guide=is_guide, num_parameters=size).examples[0]

    assert example(10, is_guide=True) == "A"
    assert [example(1), example(1_000), example(1_001)] == ["B", "B", "C"]
    assert example(0) == "C", "a model of unknown size is taken for a large one"


def test_the_file_in_the_box_has_the_questions_that_the_guide_can_answer() -> None:
    welcome = read_welcome()
    guide = welcome.find_group(is_guide=True, num_parameters=4_000_000)
    assert "Hi! What can you do?" in guide.examples
    assert guide.examples != welcome.find_group(is_guide=False, num_parameters=4_000_000).examples


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a list of groups"),
        ("examples: [Hi]", "not a list of groups"),
        ("- [", "not YAML"),
        ("- {for: guide, examples: [Hi]}", "the last group has to be for every model"),
        ("[]", "the last group has to be for every model"),
        ("- {examples: []}\n" + LAST, "group 1, examples: "),
        ("- {examples: ['  ']}\n" + LAST, "group 1, examples.0: "),
        ("- {examples: Hi}\n" + LAST, "group 1, examples: "),
        (LAST + "- {exampels: [Hi]}\n", "group 2, exampels: "),
        ("- {for: guide, max_parameters: 5, examples: [Hi]}\n" + LAST, "'for' or 'max_parameters', not both"),
        ("- {for: anything, examples: [Hi]}\n" + LAST, "group 1, for: "),
        ("- {max_parameters: 0, examples: [Hi]}\n" + LAST, "group 1, max_parameters: "),
        (f"- examples: [{', '.join('abcdefghi')}]\n", "group 1, examples: "),
        ("- examples: [" + "x" * 301 + "]\n", "group 1, examples.0: "),
        ("- " * 2000 + "a", "nested too deeply|not YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(StartupError, match=says) as refusal:
        read_welcome(tmp_path)
    assert str(file) in refusal.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"examples\.yaml is missing"):
        read_welcome(tmp_path)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "examples.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StartupError, match=r"examples\.yaml"):
        read_welcome(tmp_path)
