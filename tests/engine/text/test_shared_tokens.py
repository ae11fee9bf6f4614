"""The tokens that depend on no user's text are counted as well from the cache as anew, and without rendering again."""

from __future__ import annotations

import datetime

import pytest
from transformers.utils import chat_template_utils

from engine.interface import ChatMessage
from engine.text import shared_openings
from engine.text.chat_template import ChatTemplate
from engine.text.template_inputs import clock_formats
from testing.tokenizers import CHATML_TEMPLATE, byte_level_tokenizer

DATED = "{%- if strftime_now is defined -%}Today: {{ strftime_now('%d %b %Y') }}\n{%- endif -%}" + CHATML_TEMPLATE
INDIRECTLY_DATED = "{%- set day = '%d %b %Y' -%}Today: {{ strftime_now(day) }}\n" + CHATML_TEMPLATE
SYSTEM_LAST = (
    "{% for message in messages if message.role != 'system' %}{{ message.content }}\n{% endfor %}"
    "{% for message in messages if message.role == 'system' %}{{ message.content }}\n{% endfor %}"
)


def make_template(text: str) -> ChatTemplate:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = text
    return ChatTemplate(tokenizer)


def conversation(text: str, system: str = "", *, shared: bool = True) -> list[ChatMessage]:
    messages: list[ChatMessage] = [{"role": "user", "content": text}]
    if system:
        messages.insert(0, {"role": "system", "content": system, "shared": shared})
    return messages


class Clock(datetime.datetime):
    """A clock that the test sets."""

    day = 1

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Clock:
        return cls(2026, 3, cls.day, tzinfo=tz)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "day", 1)
    for module in (shared_openings, chat_template_utils):
        monkeypatch.setattr(module, "datetime", Clock)
    return Clock


def count(template: ChatTemplate, messages: list[ChatMessage]) -> int:
    return template.num_shared(messages, template.render(messages).token_ids)


@pytest.mark.parametrize("text", [CHATML_TEMPLATE, DATED])
def test_an_opening_is_rendered_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = make_template(text)
    prompts = [conversation(f"{number}?", "You answer for the desk.") for number in range(3)]
    token_ids = [template.render(prompt).token_ids for prompt in prompts]
    first = template.num_shared(prompts[0], token_ids[0])

    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("rendered again")

    monkeypatch.setattr(template._openings, "_render", refuse)
    assert first > 10
    for prompt, ids in zip(prompts, token_ids, strict=True):
        assert template.num_shared(prompt, ids) == first


@pytest.mark.parametrize(
    "text", [CHATML_TEMPLATE, DATED, INDIRECTLY_DATED, SYSTEM_LAST, "{{ raise_exception('never') }}"]
)
def test_the_cache_changes_no_count(text: str) -> None:
    """Prompts that differ in the text, the role or the name before a user's message have openings of their own."""
    template = make_template(text)
    named: list[ChatMessage] = [{"role": "system", "content": "Ab.", "shared": True, "name": "x"}, *conversation("b")]
    replied: list[ChatMessage] = [{"role": "assistant", "content": "a"}, *conversation("b")]
    prompts = [conversation("0"), conversation("a"), named, replied]
    prompts += [conversation("b", system, shared=shared) for system in ("A", "Ab.") for shared in (True, False)]
    for prompt in [*prompts, *prompts]:
        ids = byte_level_tokenizer().encode("".join(f"{message['role']}{message['content']}" for message in prompt))
        if "never" not in text:
            ids = template.render(prompt).token_ids
        assert template.num_shared(prompt, ids) == make_template(text).num_shared(prompt, ids)


@pytest.mark.parametrize("text", [DATED, INDIRECTLY_DATED])
def test_a_new_day_has_openings_of_its_own(text: str, clock: type[Clock]) -> None:
    template = make_template(text)
    prompt = conversation("Hi", "You answer for the desk.")
    count(template, prompt)
    clock.day = 2
    assert count(template, prompt) == count(make_template(text), prompt)


def test_an_opening_that_midnight_interrupted_is_not_cached(
    clock: type[Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = make_template(DATED)
    prompt = conversation("Hi", "You answer for the desk.")
    token_ids = template.render(prompt).token_ids
    tokenize = template._openings._tokenize

    def tokenize_at_midnight(text: str) -> list[int]:
        clock.day = 2
        return tokenize(text)

    monkeypatch.setattr(template._openings, "_tokenize", tokenize_at_midnight)
    template.num_shared(prompt, token_ids)
    clock.day = 1
    assert template.num_shared(prompt, token_ids) == count(make_template(DATED), prompt)
    assert not template._openings._cached


def test_what_is_remembered_of_shared_beginnings_is_bounded_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_openings, "MAX_OPENING_CHARACTERS", 10_000)
    template = make_template("{% for message in messages %}{{ message['content'] }}\n{% endfor %}")
    for number in range(8):
        system = f"{number}" * 2000
        messages: list[ChatMessage] = [
            {"role": "system", "content": system, "shared": True},
            {"role": "user", "content": "hello"},
        ]
        assert template.num_shared(messages, template.render(messages).token_ids) > 0
        assert sum(characters for _, characters in template._openings._cached.values()) <= 10_000
    assert template._openings._cached  # the newest that fit
    longest: list[ChatMessage] = [{"role": "system", "content": "b" * 9000, "shared": True}]
    assert template.num_shared(longest, template.render(longest).token_ids) > 0  # not remembered, and as right


@pytest.mark.parametrize(
    ("template", "formats"),
    [
        (CHATML_TEMPLATE, ()),
        (DATED, ("%d %b %Y",)),
        ('{{ strftime_now("%Y") }}{{ strftime_now( "%m" ) }}{{ strftime_now("%Y") }}', ("%Y", "%m")),
        ("{% if strftime_now is not defined %}never{% endif %}", ()),
        (INDIRECTLY_DATED, None),
        (r"{{ strftime_now('\x25Y') }}", None),
        ("{{ strftime_now('%Y' ~ '%m') }}", None),
        ("{% set clock = strftime_now %}{{ clock('%Y') }}", None),
        ("{{ ['a', 'b'] | random }}", None),
        ("{{ lipsum() }}", None),
    ],
)
def test_what_a_template_shows_of_the_clock(template: str, formats: tuple[str, ...] | None) -> None:
    assert clock_formats(template) == formats
