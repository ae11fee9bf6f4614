"""Prompts and canned replies: a small language, versions that are never changed, and what a chat is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID as ME
from app.domain.templates import MAX_VALUE_CHARS, Template, TemplateKind, Variable
from app.errors import Conflict, InvalidInput, NotFound
from app.services.container import Services
from app.templates import catalog
from testing.fake_engine import FakeEngine

PROMPT, CANNED = TemplateKind.PROMPT, TemplateKind.CANNED


def template(body: str, *names: str, default: str | None = "somebody", **fields: object) -> Template:
    variables = tuple(Variable(name=name, description="who", default=default) for name in names)
    return Template(title="T", description="d", body=body, variables=variables, **fields)


def test_variables_are_filled_in() -> None:
    text = template("Dear {{ who | title }},{% if what %} about {{ what }}{% else %} hello{% endif %}", "who", "what")
    checked = text.checked(CANNED)
    assert checked.render({"who": "ada", "what": ""}) == "Dear Ada, hello"
    assert checked.render({"who": "{{ what }}", "other": "x"}) == "Dear {{ What }}, about somebody"
    with pytest.raises(InvalidInput, match="needs a value for 'who'"):
        template("{{ who }}", "who", default=None).checked(CANNED).render()
    with pytest.raises(InvalidInput, match="2,001 characters"):
        checked.render({"who": "x" * (MAX_VALUE_CHARS + 1)})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{{ nobody }}", "'nobody', which is not declared"),
        ("{% if %}", "Line 1"),
        ("a\n{{ who", "Line 2"),
        ("{% for x in who %}{{ x }}{% endfor %}", "unsupported syntax .line 1: for"),
        ("{{ who * 999999999 }}", "mul"),
        ("{{ who ~ 9 ** 99999999 }}", "pow"),
        ("{{ ''.__class__ }}", "getattr"),
        ("{{ who.__init__ }}", "getattr"),
        ("{{ who['x'] }}", "getitem"),
        ("{{ range(9) }}", "call"),
        ("{% set who = who ~ who %}", "assign"),
        ("{% macro who() %}{% endmacro %}", "macro"),
        ("{% include 'x' %}", "include"),
        ("{{ who | center(999999999) }}", "no filter 'center'"),
        ("{{ who | attr('x') }}", "no filter 'attr'"),
        ("{{ who is none }}", "no test 'none'"),
        ("{{ " + "(" * 900 + "who" + ")" * 900 + " }}", "nested too deeply|not a valid template"),
        ("{{ " + "not " * 1900 + "who }}", "nested too deeply|not a valid template"),
        ("{{ who" + " | title" * 300 + " }}", "nested too deeply"),
        ("{{ " + " ~ ".join(["who"] * 2500) + " }}", "at most 2,000 fit"),
        (" \n ", "empty"),
        ("{% if who == 'y' %}text{% endif %}", "empty"),
    ],
)
def test_what_is_no_template_is_refused(body: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        template(body, "who").checked(CANNED)


def test_prompts_need_defaults_and_canned_replies_recommend_nothing() -> None:
    with pytest.raises(InvalidInput, match="needs a default"):
        template("{{ who }}", "who", default=None).checked(PROMPT)
    with pytest.raises(InvalidInput, match="declared twice"):
        template("{{ who }}", "who", "who").checked(PROMPT)
    with pytest.raises(InvalidInput, match="temperature"):
        template("hi", recommended=ChatSettings(temperature=99)).checked(PROMPT)
    with pytest.raises(InvalidInput, match="cannot recommend 'system_prompt'"):
        template("hi", recommended=ChatSettings(system_prompt="x")).checked(PROMPT)
    with pytest.raises(InvalidInput, match="cannot recommend sampling"):
        template("hi", recommended=ChatSettings(temperature=0.1)).checked(CANNED)


async def test_a_prompt_without_values_is_rendered_once(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MAX_RENDERED", 2)
    templates, renders, render = services.templates, list[str](), Template.render

    def counted(self: Template, given: Mapping[str, str] | None = None) -> str:
        renders.append(self.body)
        return render(self, given)

    async def rendered(given: Mapping[str, str] | None = None) -> tuple[str, int]:
        renders.clear()
        return await templates.render(PROMPT, "concise", given), len(renders)

    written = template("Dear {{ who }}", "who")
    await templates.write(ME, PROMPT, "concise", written, after=0)
    monkeypatch.setattr(Template, "render", counted)
    assert [await rendered(), await rendered({})] == [("Dear somebody", 1), ("Dear somebody", 0)]
    assert await rendered({"who": "Ada"}) == ("Dear Ada", 1)
    assert await rendered() == ("Dear somebody", 0)
    for version, default in enumerate(("Bob", "Carl", "Dan"), start=1):  # the same body with another default
        await templates.write(ME, PROMPT, "concise", template("Dear {{ who }}", "who", default=default), after=version)
        assert await rendered() == (f"Dear {default}", 1)
    assert len(templates._rendered) == 2
    await templates.write(ME, PROMPT, "concise", template("Dear {{ who }}", "who", default="y" * 2000), after=4)
    monkeypatch.setattr(catalog, "MAX_BODY_CHARS", 1000)
    assert [(await rendered())[1], (await rendered())[1]] == [1, 1]  # too long to be cached


async def test_an_edit_is_a_version_and_the_file_is_a_click_away(services: Services) -> None:
    catalog = services.templates
    [file] = [each for each in await catalog.all(PROMPT) if each.name == "concise"]
    assert (file.version, file.author) == (0, None)
    edited = template("Be brief, {{ who }}.", "who", recommended=ChatSettings(temperature=0.1))
    assert await catalog.write(ME, PROMPT, "concise", edited, after=0) == 1
    assert await catalog.write(ME, PROMPT, "concise", template("Be very brief."), after=1) == 2
    assert await catalog.render(PROMPT, "concise") == "Be very brief."
    history = await catalog.history(PROMPT, "concise")
    assert [version.version for version in history] == [2, 1, 0]
    assert history[1].template == edited
    assert history[1].author is not None
    assert await catalog.restore(ME, PROMPT, "concise", 0, after=2) == 3
    assert await catalog.render(PROMPT, "concise") == file.template.body
    with pytest.raises(NotFound, match="no version 9"):
        await catalog.restore(ME, PROMPT, "concise", 9, after=3)
    with pytest.raises(NotFound):
        await catalog.history(PROMPT, "nobody")


async def test_who_edits_an_older_version_is_told(services: Services) -> None:
    catalog = services.templates
    text = template("hello")
    results = await asyncio.gather(
        *(catalog.write(ME, CANNED, "greeting", text, after=0) for _ in range(4)), return_exceptions=True
    )
    assert sorted(map(type, results), key=str) == [Conflict, Conflict, Conflict, int]
    for call in (
        catalog.write(ME, CANNED, "greeting", text, after=0),
        catalog.restore(ME, CANNED, "greeting", 1, after=7),
        catalog.remove(ME, CANNED, "greeting", after=0),
    ):
        with pytest.raises(Conflict, match="meanwhile"):
            await call


async def test_what_is_removed_can_be_brought_back(services: Services) -> None:
    catalog = services.templates
    await catalog.write(ME, CANNED, "greeting", template("hello"), after=0)
    await catalog.remove(ME, CANNED, "greeting", after=1)
    assert "greeting" not in {each.name for each in await catalog.all(CANNED)}
    assert [each.removed for each in await catalog.all(CANNED, removed=True) if each.name == "greeting"] == [True]
    with pytest.raises(InvalidInput, match=r"no canned reply 'greeting'\. There are: .*solved"):
        await catalog.render(CANNED, "greeting")
    with pytest.raises(NotFound):
        await catalog.remove(ME, CANNED, "greeting", after=2)
    await catalog.restore(ME, CANNED, "greeting", 1, after=2)
    assert await catalog.render(CANNED, "greeting") == "hello"
    for name in ("", "A", "a b", "-a", "a" * 65, "../x"):
        with pytest.raises(InvalidInput, match="A name has"):
            await catalog.write(ME, CANNED, name, template("hello"), after=0)


async def test_a_chat_is_told_the_latest_version_with_its_variables(services: Services, engine: FakeEngine) -> None:
    async def told(**settings: object) -> str:
        ref = await services.turns.start(ME, text="hi", settings=ChatSettings(**settings))
        async for _ in services.turns.events(ME, ref.turn_id):
            pass
        return str(engine.calls[-1][0][0]["content"])

    named = {"system_prompt_name": "support-desk"}
    assert "support desk of our company." in await told(**named)
    assert "support desk of Acme." in await told(**named, system_prompt_variables={"company": "Acme"})
    await services.templates.write(ME, PROMPT, "support-desk", template("You serve {{ who }}.", "who"), after=0)
    assert await told(**named, system_prompt_variables={"company": "Acme"}) == "You serve somebody."
    with pytest.raises(InvalidInput, match=r"There is no system prompt 'nobody'\. There are: .*teacher"):
        await told(system_prompt_name="nobody")


async def test_a_text_that_takes_long_holds_nobody_up_and_is_given_up(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, enough = threading.Event(), threading.Event()

    def slow(self: Template, kind: TemplateKind) -> Template:
        begun.set()
        enough.wait(30)
        return self

    monkeypatch.setattr(Template, "checked", slow)
    monkeypatch.setattr(catalog, "MAX_TRY_SECONDS", 0.2)
    tried = asyncio.create_task(services.templates.try_out(CANNED, template("{{ who }}", "who")))
    await asyncio.to_thread(begun.wait, 30)  # the event loop runs while the text is looked at
    try:
        with pytest.raises(InvalidInput, match="took longer"):
            await tried
    finally:
        enough.set()


async def test_saving_looks_at_the_text_outside_the_event_loop_too(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[threading.Thread] = []
    checked = Template.checked

    def watched(self: Template, kind: TemplateKind) -> Template:
        seen.append(threading.current_thread())
        return checked(self, kind)

    monkeypatch.setattr(Template, "checked", watched)
    await services.templates.write(ME, CANNED, "new-one", template("Dear {{ who }}", "who"), after=0)
    assert seen
    assert threading.main_thread() not in seen
