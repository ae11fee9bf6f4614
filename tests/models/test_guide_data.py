"""The guide's training text: what may not go wrong when someone extends it."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from app.cli.main import cli
from app.domain.presets import PRESETS
from app.errors import StartupError
from app.main import create_app
from app.server.serving import require_loopback
from app.settings import AppSettings
from engine import Engine
from engine.settings import EngineSettings
from models.guide.dialogues import Dialogues, ask, follow, mistype
from models.guide.evaluate import mid_chat_cases, opposite_cases
from models.guide.patterns import Filled, Patterns, normalise
from models.guide.topics import DATA, DataError, GuideData, load

ROOT = Path(__file__).resolve().parents[2]
_OF_DOCKER = {"--build", "--rm", "--wait"}  # of `docker compose`


def test_there_is_enough_to_learn(data: GuideData) -> None:
    assert len(data.topics) >= 150
    assert all(topic.num_questions >= 8 for topic in data.topics), "a topic needs eight ways to ask for it"
    assert len({topic.name for topic in data.topics}) == len(data.topics)


def test_held_out_questions_are_never_trained_on(data: GuideData) -> None:
    assert all(topic.held_out for topic in data.topics)
    assert all(follow_up.held_out for follow_up in data.follow_ups)
    held_out = {normalise(q) for q in data.kept()}
    rng = random.Random(0)
    trained = {normalise(q) for follow_up in data.follow_ups for q in follow_up.questions}
    trained |= {normalise(q) for topic in data.topics for q in (*topic.common, *topic.written, *topic.filled.whole)}
    trained |= {normalise(ask(rng, topic)) for topic in data.topics for _ in range(100)}
    assert not trained & held_out


@pytest.mark.full
def test_of_all_that_patterns_make_nothing_is_held_out_or_another_topics(data: GuideData) -> None:
    held_out = {normalise(q) for q in data.kept()}
    owner: dict[str, str] = {}
    for topic in data.topics:
        for question in map(normalise, (*topic.written, *topic.filled)):
            assert question not in held_out
            assert owner.setdefault(question, topic.name) == topic.name, question


def few_topics(tmp_path: Path) -> Path:
    """A copy of the data to be made wrong, with few topics: all of them take a while to read."""
    others = {file.name for file in (DATA / "topics").iterdir()} - {"more.yaml", "engine.yaml"}
    copy = Path(shutil.copytree(DATA, tmp_path / "data", ignore=lambda _folder, names: others.intersection(names)))
    for about_topics in ("strangers", "held_out", "directions"):
        (copy / f"{about_topics}.yaml").write_text("{}\n", encoding="utf-8")
    load(copy)
    return copy


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("strangers.yaml", 'no-such-topic: ["who are they"]', "no-such-topic.*no topics"),
        ("held_out.yaml", 'mid_chat: {no-such-topic: ["who are they"]}', "no-such-topic.*no topics"),
        ("directions.yaml", "no-such-topic: {lower: less}", "no-such-topic.*no topics"),
        ("directions.yaml", "empty-message: {sideways: less}", "sideways.*no follow-ups"),
    ],
)
def test_what_names_a_topic_or_a_follow_up_that_is_not_there_is_refused(
    tmp_path: Path, file: str, text: str, reason: str
) -> None:
    copy = few_topics(tmp_path)
    (copy / file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"{re.escape(file)}.*{reason}"):
        load(copy)


def test_patterns_make_each_question_once_but_those_held_out() -> None:
    patterns = Patterns({"names": ["what is {}", "{}"], "tasks": ["how do i {}"]})
    phrases = {"names": ["top-k", "the KV cache"], "tasks": ["start"]}
    filled = Filled(patterns, ["a whole one"], phrases, {"what is the kv cache", "top-k", "of another"})
    assert list(filled) == ["a whole one", "what is top-k", "the KV cache", "how do i start"]
    assert filled[-1] == "how do i start"
    assert filled[1:3] == ["what is top-k", "the KV cache"]
    with pytest.raises(IndexError):
        filled[4]
    assert set(patterns.find("what is top-k")) == {("names", "top-k"), ("names", "what is top-k")}


@pytest.mark.parametrize("pattern", ["no place", "{} and {}", "un{}able"])
def test_a_pattern_without_a_place_of_its_own_is_refused(pattern: str, tmp_path: Path) -> None:
    copy = few_topics(tmp_path)
    wording = copy / "wording.yaml"
    first = "  - what is {}\n"
    wording.write_text(wording.read_text("utf-8").replace(first, f'{first}  - "{pattern}"\n', 1), encoding="utf-8")
    with pytest.raises(DataError, match=r"wording\.yaml.*as a word of its own"):
        load(copy)


@pytest.mark.parametrize(
    "wording",
    [
        "ask: ['NUM_ctx like in ollama?!']",  # written there
        "ask: ['would you explain an interrupted reply'], names: [an interrupted reply]",  # made there by a pattern
        "tasks: [send an empty message]",  # two phrases alike
    ],
)
def test_what_another_topic_is_asked_is_refused(wording: str, tmp_path: Path) -> None:
    copy = few_topics(tmp_path)
    entry = f"- {{topic: twice, {wording}, held_out: [x1], answer: [a], facts: [a]}}"
    (copy / "topics" / "zz.yaml").write_text(entry, encoding="utf-8")
    with pytest.raises(DataError, match=r"stands in two topics: .*twice"):
        load(copy)


def test_every_answer_holds_its_own_key_facts(data: GuideData) -> None:
    lacking = [(topic.name, answer) for topic in data.topics for answer in topic.answers if not topic.knows(answer)]
    assert not lacking


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("{topic: t, ask: [q1], held_out: [q2], answer: [a]}", "facts.*missing"),
        ("{topic: t, ask: [q1], held_out: [q2], answer: [a], facts: [a], anwser: [b]}", "unknown field.*anwser"),
        ("{topic: t, ask: ['{nothing}'], held_out: [q2], answer: [a], facts: [a]}", "nothing.*words.yaml"),
        ("{topic: t, ask: [q1], held_out: ['Q1!'], answer: [a], facts: [a]}", "no question left"),
        ("{topic: t, ask: [yes], held_out: [q2], answer: [a], facts: [a]}", "put it in quotes"),
        ("{topic: t, ask: [q1", "cannot be read"),
    ],
)
def test_a_wrong_entry_is_refused_with_the_reason(tmp_path: Path, entry: str, reason: str) -> None:
    copy = few_topics(tmp_path)
    (copy / "topics" / "zz.yaml").write_text(f"- {entry}", encoding="utf-8")
    with pytest.raises(DataError, match=reason):
        load(copy)


def test_a_seed_draws_the_same_conversations(data: GuideData) -> None:
    dialogues = Dialogues(data)
    one, other = random.Random(7), random.Random(7)
    assert [dialogues.draw(one, 3) for _ in range(50)] == [dialogues.draw(other, 3) for _ in range(50)]


def test_conversations_alternate_and_hold_text(data: GuideData) -> None:
    dialogues, rng = Dialogues(data), random.Random(0)
    for _ in range(500):
        messages = dialogues.draw(rng, 4)
        if messages[0]["role"] == "system":
            messages = messages[1:]
        assert [message["role"] for message in messages] == ["user", "assistant"] * 4
        assert all(message["content"].strip() for message in messages)


def test_follow_ups_stay_with_their_topic(data: GuideData) -> None:
    rng = random.Random(0)
    topic = next(topic for topic in data.topics if topic.name == "kv-cache")
    of = {follow_up.name: follow_up for follow_up in data.follow_ups}
    first = topic.answers[0]
    assert follow(rng, of["again"], topic, first) == first
    assert follow(rng, of["shorter"], topic, first) == topic.short
    assert follow(rng, of["shorter"], topic, topic.short or "") in of["shorter"].fallback
    assert follow(rng, of["differently"], topic, first) in topic.answers[1:]
    assert follow(rng, of["why"], topic, first) in topic.why
    assert follow(rng, of["why"], None, "") in of["why"].alone


@pytest.mark.parametrize(("one", "other"), [("raise", "lower"), ("enable", "disable")])
def test_a_follow_up_that_points_one_way_gets_its_own_answer(data: GuideData, one: str, other: str) -> None:
    rng = random.Random(0)
    of = {follow_up.name: follow_up for follow_up in data.follow_ups}
    both = [topic for topic in data.topics if {one, other} <= topic.directions.keys()]
    assert len(both) >= 10
    for topic in both:
        said = {name: follow(rng, of[name], topic, topic.answers[0]) for name in (one, other)}
        assert said[one] in topic.directions[one]
        assert said[other] in topic.directions[other]
        assert said[one] != said[other]
    silent = next(topic for topic in data.topics if not topic.directions)
    assert follow(rng, of[one], silent, silent.answers[0]) in of[one].fallback


def test_talks_greet_in_the_middle_and_come_back_to_what_they_had(data: GuideData) -> None:
    dialogues, rng = Dialogues(data), random.Random(0)
    turns = greeted = returned = 0
    for _ in range(200):
        about = [one.get("topic") for one in dialogues.draw(rng, 8, stays=0.0) if one["role"] == "assistant"]
        assert len(about) == 8
        turns += 7
        greeted += sum(topic in ("hello", "what-can-you-do") for topic in about[1:])
        returned += sum(topic in about[:place] for place, topic in enumerate(about))
    assert greeted > 0.05 * turns  # drawn as they are alone, they would be one in a hundred
    assert returned > 0.1 * turns


def test_the_measures_of_long_talks_ask_what_is_held_out_after_other_things(data: GuideData) -> None:
    kept = {normalise(question) for question in data.kept()}
    of_topic = {answer: topic.name for topic in data.topics for answer in topic.answers}
    returning = 0
    for case in mid_chat_cases(data, seed=0):
        *before, question = case.messages
        assert normalise(question["content"]) in kept
        assert len(before) >= 10
        told = [of_topic.get(message["content"]) for message in before if message["role"] == "assistant"]
        assert case.topic.name not in told[1:]
        returning += told[0] == case.topic.name
    assert returning == 100
    for case in opposite_cases(data, seed=0):
        assert normalise(case.messages[-1]["content"]) in kept
        others = [texts for texts in case.topic.directions.values() if texts != case.expected]
        assert not case.expected or all(set(case.expected).isdisjoint(texts) for texts in others)


def test_slips_of_the_finger_leave_the_text_readable() -> None:
    rng = random.Random(0)
    for _ in range(300):
        slipped = mistype(rng, "how do i delete a chat")
        assert abs(len(slipped) - len("how do i delete a chat")) <= 2
        assert slipped.count(" ") == 5


def replies(data: GuideData) -> list[str]:
    return [
        text
        for topic in data.topics
        for texts in (topic.answers, topic.why, topic.example, topic.more, *topic.directions.values())
        for text in (*texts, topic.short or "")
    ]


def commands_by_name() -> dict[str, click.Command]:
    """Every command of the program, such as ``db check``."""
    found: dict[str, click.Command] = {}
    for name, command in getattr(typer.main.get_command(cli), "commands", {}).items():
        children = getattr(command, "commands", None)
        found |= {name: command} if children is None else {f"{name} {child}": one for child, one in children.items()}
    return found


def test_no_variation_is_a_held_out_question(data: GuideData) -> None:
    dialogues, rng = Dialogues(data), random.Random(1)
    held_out = {normalise(q) for q in data.kept()}
    # Wordings that an opener, another word or a left-out word turns into one that is held out, with some luck.
    close = [q for topic in data.topics for q in topic.written if f"hey, {q}" in topic.held_out]
    close += ["what exactly is the kv cache", "how are you doing today", "what's the effect of top-p"]
    for question in close:
        assert held_out.isdisjoint(normalise(dialogues.vary(rng, question)) for _ in range(2000))


def test_other_words_and_bare_keywords_come_up(data: GuideData) -> None:
    dialogues, rng = Dialogues(data), random.Random(0)
    asked = {normalise(dialogues.vary(rng, "how do i delete a chat")) for _ in range(600)}
    assert {"delete chat", "how do i remove a conversation"} & asked
    assert any("erase" in question for question in asked)


def test_what_it_says_about_deskmate_exists(data: GuideData) -> None:
    said = "\n".join(replies(data))
    settings = {f"ENGINE_{name}".upper() for name in EngineSettings.model_fields}
    settings |= {f"APP_{name}".upper() for name in AppSettings.model_fields}
    assert set(re.findall(r"\b(?:ENGINE|APP)_[A-Z_]*[A-Z]", said)) <= settings
    flags = {f"--{name}".replace("_", "-") for name in (*EngineSettings.model_fields, *AppSettings.model_fields)}
    commands: list[Any] = [typer.main.get_command(cli), *commands_by_name().values()]
    options = {
        option
        for command in commands
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"(?<!\S)`?(--[a-z][a-z0-9-]*)", said)) <= flags | options | {"--help"} | _OF_DOCKER
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", said)) <= set(targets)
    presets = {preset.title for preset in PRESETS}
    assert {"Precise", "Balanced", "Creative"} <= presets
    folders = set(re.findall(r"`((?:engine|app|models|prompts|migrations|tests)/[\w/.]*)`", said))
    assert folders
    assert all((ROOT / folder).exists() for folder in folders)


def test_the_plainest_wording_is_kept_and_practised_most(data: GuideData) -> None:
    hello = next(topic for topic in data.topics if topic.name == "hello")
    assert hello.common[0] == "hi"  # "hi!" further down the list is the same question and must not replace it
    assert all(topic.common for topic in data.topics)
    dialogues, rng = Dialogues(data), random.Random(0)
    assert "hi" in {dialogues.vary(rng, "hi") for _ in range(50)}


def test_routes_and_commands_in_its_answers_exist(data: GuideData) -> None:
    said = "\n".join(replies(data))
    paths = set(create_app(AppSettings(), Engine(EngineSettings())).openapi()["paths"])
    named = set(re.findall(r"(?<=`)/(?:v1|api|health|ready|metrics)[\w/]*(?=`)", said)) - {"/v1"}
    assert named
    assert named <= paths
    ran = set(re.findall(r"\bdeskmate ((?:db |user )[a-z-]+|(?:serve|export|import|doctor)\b)", said))
    ran |= set(re.findall(r"`deskmate (?!(?:db|user)\b)([a-z-]+)", said))
    assert {"serve", "doctor"} <= ran <= set(commands_by_name())


def test_defaults_in_its_answers_are_the_settings(data: GuideData) -> None:
    fields = {f"APP_{name}".upper(): field for name, field in AppSettings.model_fields.items()}
    fields |= {f"ENGINE_{name}".upper(): field for name, field in EngineSettings.model_fields.items()}
    stated = [
        (re.findall(r"\b(?:ENGINE|APP)_[A-Z_]*[A-Z]", text)[0], value.rstrip("."))
        for text in replies(data)
        for value in re.findall(r"default is `?([\w.]+)", text)
        if "_" in text
    ]
    assert {name for name, _ in stated} >= {"APP_PORT", "APP_DATA_DIR"}
    assert all(str(fields[name].default) == value for name, value in stated), stated
    address = f"{AppSettings.model_fields['host'].default}:{AppSettings.model_fields['port'].default}"
    urls = set(re.findall(r"http://([\w.]+:\d+)", "\n".join(replies(data))))
    assert urls == {address}


def test_it_is_true_that_other_machines_are_refused(data: GuideData) -> None:
    topic = next(topic for topic in data.topics if topic.name == "network-access")
    assert all("APP_HOST" in answer and "no" in answer.lower() for answer in topic.answers)
    with pytest.raises(StartupError, match="without accounts"):
        require_loopback("0.0.0.0")
