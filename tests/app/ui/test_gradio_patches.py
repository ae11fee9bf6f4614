"""The changes to Gradio's internals: that they fit the installed Gradio, and leave another one alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import gradio.routes
import httpx
import pytest
from fastapi import FastAPI
from jinja2 import DictLoader, Environment, Template
from starlette.staticfiles import StaticFiles

from app.services.container import Services
from app.ui import gradio_patches
from app.ui.gradio_patches import (
    SWITCH,
    TIMER,
    GradioChangedError,
    count_unread_messages,
    is_streaming,
    limit_sessions,
    preload,
    raise_max_threads,
    serve_assets,
    stop_loading_timer,
    survive_lost_requests,
    wake_queue,
)
from app.ui.html_head import PRELOADS
from app.ui.mount import MAX_EVENTS, _queued_page, mount_ui
from app.ui.static_files import STATIC_DIR
from tests.app.live_server import serve_asgi

HTML = "frontend/index.html"
FOREVER = 3600.0  #: seconds; a loop that is not woken sleeps longer than any test lasts
PATIENCE = 60  #: seconds


@pytest.fixture(autouse=True)
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged."""
    logged: list[str] = []

    class Log:
        def warning(self, text: str) -> None:
            logged.append(text)

    monkeypatch.setattr(gradio_patches, "_log", Log())
    monkeypatch.setattr(gradio_patches, "_reported", set())
    monkeypatch.delenv(SWITCH, raising=False)
    return logged


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Environment]:
    """Gives Gradio another HTML."""

    def replace(html: str) -> Environment:
        environment = Environment(loader=DictLoader({HTML: html, "other": "<p></head>"}))
        monkeypatch.setattr(gradio.routes.templates, "env", environment)
        return environment

    return replace


def no_services() -> Services:
    raise AssertionError("the page is only built")


def served(environment: Environment, name: str = HTML) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


# ---- the switch, and all of them


def test_every_patch_fits_the_installed_gradio(warnings: list[str]) -> None:
    stop_loading_timer()
    survive_lost_requests()
    preload(PRELOADS)
    serve_assets(FastAPI(), lambda folder: StaticFiles(directory=folder))
    page = _queued_page(no_services)
    assert warnings == []
    assert page.max_threads == page._queue.max_thread_count == MAX_EVENTS
    assert "push" in vars(page._queue)


@pytest.mark.slow
@pytest.mark.full
def test_switched_off_they_change_nothing_and_say_nothing(warnings: list[str]) -> None:
    """It takes a process of its own: here all of them are on."""
    script = """
import app.ui.mount as mount
import gradio.component_meta, gradio.queueing, gradio.routes
blocks = mount._queued_page(lambda: None)
from fastapi import FastAPI
mount.mount_ui(FastAPI(), lambda: None)
environment = gradio.routes.templates.env
source, _, _ = environment.loader.get_source(environment, "frontend/index.html")
assert "/ui/static/" not in source
assert type(environment.loader).__module__.startswith("jinja2"), environment.loader
assert gradio.component_meta.create_or_modify_pyi.__name__ == "create_or_modify_pyi"
assert blocks.max_threads == 40
assert blocks._queue.sleep_when_free < 0.1
assert not {"start_processing", "start_progress_updates", "push", "close"} & {*vars(blocks._queue)}
"""
    environment = {**os.environ, SWITCH: "off"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    for stub in STATIC_DIR.rglob("*.pyi"):  # Gradio wrote them beside the components
        stub.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert "patch" not in done.stdout + done.stderr


# ---- type stubs


@pytest.mark.slow
@pytest.mark.full
def test_gradios_sources_are_not_read_for_type_stubs() -> None:
    """It takes a process of its own: here Gradio is imported already."""
    page = "import ast; del ast.get_source_segment; import app.ui.page"
    subprocess.run([sys.executable, "-c", page], check=True)
    itself = page.replace("app.ui.page", "gradio")
    assert subprocess.run([sys.executable, "-c", itself], stderr=subprocess.DEVNULL).returncode, "it needs no help now"


@pytest.mark.parametrize(
    ("source", "expected"),
    [("", "a function create_or_modify_pyi"), ("def create_or_modify_pyi(component): pass", "its parameters to be")],
)
def test_another_writer_of_type_stubs_is_left_alone(
    source: str, expected: str, warnings: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "component_meta.py"
    path.write_text(source)
    loader = gradio_patches._WithoutStubs("component_meta", str(path))
    module = type(sys)("component_meta")
    for _ in range(2):
        loader.exec_module(module)
    assert getattr(module, "create_or_modify_pyi", lambda: None).__name__ in ("create_or_modify_pyi", "<lambda>")
    assert source == "" or module.create_or_modify_pyi.__code__.co_argcount == 1
    assert len(warnings) == 1
    assert expected in warnings[0]


def test_a_gradio_without_a_writer_of_type_stubs_is_imported_as_it_is(
    warnings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gradio").mkdir()
    (tmp_path / "gradio/__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.delitem(sys.modules, "gradio.component_meta")
    gradio_patches.disable_type_stubs()
    assert sys.meta_path == []
    assert len(warnings) == 1
    assert "a module gradio.component_meta" in warnings[0]


@pytest.mark.parametrize(
    "doc",
    [
        "Runs when the {{ component }} changes. {{ component }}s do.",
        "{{ component }}\n\n",
        "plain\n",
        "{{component}}",
        "{% if component %}one{% endif %} {{ component }}",
        "{# a note #}{{ component }}",
        "",
        None,
    ],
)
def test_events_have_the_docstrings_that_jinja_would_give_them(doc: str | None) -> None:
    class GradiosOwn:
        """As in ``gradio/events.py``."""

        def __init__(self, listener: Callable[[], None]) -> None:
            self.listener = listener

        def set_doc(self, component: str) -> None:
            if self.listener.__doc__:
                self.listener.__doc__ = Template(self.listener.__doc__).render(component=component)

    class Ours(GradiosOwn):
        set_doc = GradiosOwn.set_doc

    gradio_patches._fill_docs_without_jinja(Ours)
    docs = []
    for listener_class in (Ours, GradiosOwn):

        def listener() -> None: ...

        listener.__doc__ = doc
        listener_class(listener).set_doc("Chat")
        docs.append(listener.__doc__)
    assert docs[0] == docs[1]
    assert Ours.set_doc is not GradiosOwn.set_doc


def test_events_without_that_method_are_left_alone() -> None:
    class Other:
        def set_doc(self, component: str, language: str) -> None: ...

    before = Other.set_doc
    for changed in (Other, None):
        with pytest.raises(GradioChangedError, match=r"parameters to be|a method EventListener\.set_doc"):
            gradio_patches._fill_docs_without_jinja(changed)
    assert Other.set_doc is before


# ---- the head of the HTML


def test_gradios_html_ends_its_head_with_ours_once() -> None:
    for _ in range(2):  # as for a second application in this process
        stop_loading_timer()
        preload(PRELOADS)
    source = served(gradio.routes.templates.env)
    assert source.count(PRELOADS + "</head>") == 1
    assert source.count("gradio_clock.js") == 1
    assert source.index("gradio_clock.js") < source.index(PRELOADS)


def test_only_the_page_gets_the_tags(templates: Callable[[str], Environment], warnings: list[str]) -> None:
    environment = templates("<head></head><body>")
    assert preload("<link>")
    assert served(environment) == "<head><link></head><body>"
    assert served(environment, "other") == "<p></head>"
    assert warnings == []


@pytest.mark.parametrize("html", ["<body>", "<head></head><template><head></head></template>"])
def test_html_without_exactly_one_head_is_left_as_it_is(
    html: str, templates: Callable[[str], Environment], warnings: list[str]
) -> None:
    environment = templates(html)
    for _ in range(2):
        preload("<link>")
        stop_loading_timer()
    assert served(environment) == html
    assert environment.get_template(HTML).render() == html
    assert [text.partition(" is for")[0].rpartition(" ")[2] for text in warnings] == [
        "'preload'",
        "'stop_loading_timer'",
    ]
    assert all("exactly one </head>" in text for text in warnings)


@pytest.mark.parametrize("environment", [None, Environment(), Environment(loader=DictLoader({"page.html": ""}))])
def test_gradio_with_other_templates_is_left_as_it_is(
    environment: object, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradio.routes.templates, "env", environment)
    assert not preload("<link>")
    assert len(warnings) == 1


@pytest.mark.parametrize("switch", ["on", "off"])
def test_the_theme_is_applied_once_with_and_without_the_patches(
    switch: str, templates: Callable[[str], Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = templates("<head></head><body>")
    monkeypatch.setenv(SWITCH, switch)
    heads: list[str] = []
    monkeypatch.setattr(gr, "mount_gradio_app", lambda *_, head, **__: heads.append(head))
    mount_ui(FastAPI(), no_services)
    assert (served(environment) + heads[0]).count("appearance_now.js") == 1


def test_the_timer_that_is_looked_for_is_the_one_that_is_stopped() -> None:
    script = next(STATIC_DIR.parent.rglob("gradio_clock.js")).read_text()
    assert f"/{TIMER}/" in script


def test_a_gradio_with_another_timer_gets_no_script(
    templates: Callable[[str], Environment], warnings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = templates("<head></head>")
    assets = tmp_path / "templates/frontend/assets"
    assets.mkdir(parents=True)
    monkeypatch.setattr(gr, "__file__", str(tmp_path / "__init__.py"))
    for source in (None, "setInterval(tick, 100)"):
        if source is not None:
            (assets / "statustracker-1.js").write_text(source)
        stop_loading_timer()
        assert served(environment) == "<head></head>"
    assert len(warnings) == 1
    (assets / "statustracker-2.js").write_text("a(()=>{b(c,(performance.now()-d(e))/1e3),f&&g()})")
    stop_loading_timer()
    assert "gradio_clock.js" in served(environment)


def test_a_gradio_whose_files_are_named_otherwise_serves_them_itself(
    warnings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = FastAPI()
    there = len(app.routes)
    assets = tmp_path / "templates/frontend/assets"
    assets.mkdir(parents=True)
    monkeypatch.setattr(gr, "__file__", str(tmp_path / "__init__.py"))
    for name in (None, "index-DphvyggB.js", "index.css"):
        if name is not None:
            (assets / name).write_text("")
        serve_assets(app, lambda folder: StaticFiles(directory=folder))
        assert len(app.routes) == there + (name == "index-DphvyggB.js")
        there = len(app.routes)
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "source",
    [
        None,
        "post=(e)=>fetch(e)",
        "try{f()}catch{throw Error(re)}b(`${l.root}/run${T}`).then(([e,t])=>{let t=e?.error===re;D({broken:t})})",
        "try{f()}catch{return[{error:re},500]}b(`${l.root}/run${T}`).then(([e,t])=>{D({message:e.error,broken:!1})})",
    ],
)
def test_a_gradio_that_takes_lost_requests_otherwise_gets_no_script(
    source: str | None,
    templates: Callable[[str], Environment],
    warnings: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = templates("<head></head>")
    assets = tmp_path / "templates/frontend/assets"
    assets.mkdir(parents=True)
    monkeypatch.setattr(gr, "__file__", str(tmp_path / "__init__.py"))
    if source is not None:
        (assets / "index-1.js").write_text(source)
    for _ in range(2):
        survive_lost_requests()
    assert served(environment) == "<head></head>"
    assert len(warnings) == 1
    assert "'survive_lost_requests'" in warnings[0]


# ---- the queue


@pytest.mark.parametrize("name", ["max_threads", "_queue"])
def test_blocks_without_a_limit_of_threads_stay_as_they_are(name: str, warnings: list[str]) -> None:
    page = gr.Blocks(analytics_enabled=False)
    setattr(page, name, None)
    before = vars(page).copy()
    raise_max_threads(page, 7)
    assert vars(page) == before
    assert len(warnings) == 1


def _without(name: str) -> Callable[[Any], None]:
    return lambda queue: setattr(queue, name, None)


def _with_loop(name: str, loop: object) -> Callable[[Any], None]:
    return lambda queue: setattr(queue, "__class__", type("Queue", (type(queue),), {name: loop}))


async def _woken_by_itself(self: Any) -> None:
    await self.changed.wait()


def _polling() -> object:
    later = 0.1

    async def start_processing(self: Any) -> None:
        await asyncio.sleep(self.sleep_when_free + later)

    return start_processing


@pytest.mark.parametrize(
    "change",
    [
        *(_without(name) for name in ("push", "reset_iterators", "set_progress", "close")),
        _with_loop("start_processing", None),
        _with_loop("start_processing", lambda self: None),
        _with_loop("start_processing", _woken_by_itself),
        _with_loop("start_processing", _polling()),
        _with_loop("start_progress_updates", _woken_by_itself),
    ],
)
def test_another_queue_is_left_as_it_is(change: Callable[[Any], None], warnings: list[str]) -> None:
    page = gr.Blocks(analytics_enabled=False)
    change(page._queue)
    before = vars(page._queue).copy()
    for _ in range(2):
        wake_queue(page)
    assert vars(page._queue) == before
    assert len(warnings) == 1
    assert "'wake_queue'" in warnings[0]


def test_a_page_without_a_queue_is_left_as_it_is(warnings: list[str]) -> None:
    page = gr.Blocks(analytics_enabled=False)
    page._queue = None
    wake_queue(page)
    assert len(warnings) == 1


class Session:
    """One session of a page, at the doors that Gradio's client uses."""

    def __init__(self, http: httpx.AsyncClient, name: str) -> None:
        self._http = http
        self._name = name

    async def join(self, fn_index: int, *data: object) -> str:
        """Returns the event's id."""
        body = {"data": data, "fn_index": fn_index, "session_hash": self._name}
        joined = await self._http.post("/gradio_api/queue/join", json=body)
        return str(joined.raise_for_status().json()["event_id"])

    async def cancel(self, fn_index: int, event_id: str) -> None:
        body = {"fn_index": fn_index, "session_hash": self._name, "event_id": event_id}
        (await self._http.post("/gradio_api/cancel", json=body)).raise_for_status()

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Until all events of the session have ended."""
        async with self._http.stream("GET", "/gradio_api/queue/data", params={"session_hash": self._name}) as events:
            async for line in events.aiter_lines():
                if line:
                    yield json.loads(line.removeprefix("data: "))

    async def results(self) -> list[Any]:
        ended = [
            message["output"]["data"] async for message in self.messages() if message["msg"] == "process_completed"
        ]
        return [value for (value,) in ended]

    async def ask(self, fn_index: int, *data: object) -> Any:
        await self.join(fn_index, *data)
        (result,) = await self.results()
        return result


@pytest.fixture(autouse=True)
def loops_that_must_be_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by looking for it now and then."""
    monkeypatch.setattr(gradio_patches, "MAX_SLEEP_SECONDS", FOREVER)


def one_listener(listener: Callable[..., object], **options: Any) -> gr.Blocks:
    with gr.Blocks(analytics_enabled=False) as page:
        box = gr.Number(precision=0)
        box.change(listener, box, box, **options)
    page.queue(default_concurrency_limit=None)
    page._queue.sleep_when_free = FOREVER  # its loop must not use it
    wake_queue(page)
    return page


@asynccontextmanager
async def serving(page: gr.Blocks) -> AsyncIterator[Callable[[str], Session]]:
    app = FastAPI()
    gr.mount_gradio_app(app, page, "/", ssr_mode=False, mcp_server=False, enable_monitoring=False, run_history=False)
    async with asyncio.timeout(PATIENCE), app.router.lifespan_context(app), serve_asgi(app) as (_url, http):
        yield lambda name: Session(http, name)


async def test_an_event_starts_although_nothing_looks_for_it() -> None:
    async with serving(one_listener(lambda value: value + 1)) as session:
        for value in (1, 2):
            assert await session("one").ask(0, value) == value + 1


@pytest.mark.slow
async def test_many_events_at_once_all_start_two_at_a_time() -> None:
    running, most, lock = 0, 0, threading.Lock()

    async def listener(value: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return value

    async with serving(one_listener(listener, concurrency_limit=2)) as session:
        asked = [session(f"session {user}").ask(0, user) for user in range(40)]
        assert await asyncio.gather(*asked) == [*range(40)]
    assert most == 2


async def test_a_failed_and_a_cancelled_event_make_room_for_the_next() -> None:
    started = asyncio.Event()

    async def listener(value: int) -> int:
        if value == 1:
            raise gr.Error("no", print_exception=False)
        if value == 2:
            started.set()
            await asyncio.Event().wait()
        return value

    async with serving(one_listener(listener, concurrency_limit=1)) as session:
        cancelled = session("cancelled")
        await session("fails").join(0, 1)
        event_id = await cancelled.join(0, 2)
        await session("last").join(0, 3)
        await started.wait()
        await cancelled.cancel(0, event_id)
        assert await session("last").results() == [3]


async def test_progress_is_sent_while_the_event_runs_and_bursts_are_merged() -> None:
    seen = threading.Event()

    def listener(value: int, progress: gr.Progress = gr.Progress()) -> int:  # noqa: B008 - how Gradio finds it
        for step in range(500):
            progress((step + 1, 500))
        assert seen.wait(PATIENCE)
        return value

    page = one_listener(listener)
    async with serving(page) as session:
        one = session("one")
        await one.join(0, 1)
        updates = []
        async for message in one.messages():
            if message["msg"] == "progress":
                updates.append(message["progress_data"][0]["index"])
                if updates[-1] == 500:
                    seen.set()
        assert updates[-1] == 500
        assert len(updates) < 500


async def test_progress_is_not_sent_more_often_than_gradio_would() -> None:
    async def listener(value: int, progress: gr.Progress = gr.Progress()) -> int:  # noqa: B008 - how Gradio finds it
        for step in range(20):
            progress((step + 1, 20))
            await asyncio.sleep(0.001)
        return value

    page = one_listener(listener)
    page._queue.progress_update_sleep_when_free = FOREVER
    async with serving(page) as session:
        one = session("one")
        await one.join(0, 1)
        assert [message async for message in one.messages() if message["msg"] == "progress"] == []


async def test_a_queue_that_is_closed_ends_its_loops_and_can_be_started_again() -> None:
    page = one_listener(lambda value: value)

    def loops() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if "_Sleep.in_place_of_asyncio" in str(task.get_coro())]

    async with serving(page) as session:
        for value in (1, 2):
            assert await session("one").ask(0, value) == value
            before = loops()
            assert len(before) == 2
            await asyncio.to_thread(page._queue.close)  # as Blocks.close() may be called, in any thread
            await asyncio.gather(*before)
            assert loops() == []
            page.run_startup_events()


async def test_two_pages_wake_their_own_loops_in_their_own_event_loops() -> None:
    def elsewhere() -> object:
        async def ask() -> object:
            async with serving(one_listener(lambda value: -value)) as session:
                return await session("one").ask(0, 1)

        return asyncio.run(ask())

    async with serving(one_listener(lambda value: value)) as session:
        assert await asyncio.to_thread(elsewhere) == -1
        assert await session("one").ask(0, 1) == 1


def test_a_queue_whose_event_loop_is_gone_can_be_closed_and_started_in_another() -> None:
    page = one_listener(lambda value: value)

    async def ask(name: str) -> object:
        async with serving(page) as session:
            return await session(name).ask(0, 5)

    for name in ("before", "after"):  # a session's messages stay in the event loop that it began in
        assert asyncio.run(ask(name)) == 5
        page._queue.close()


async def test_unread_messages_are_counted_until_they_are_read() -> None:
    page = one_listener(lambda value: value)
    async with serving(page) as session:
        assert count_unread_messages(page, "one") == 0
        assert not is_streaming(page, "one")
        await session("one").join(0, 1)
        assert count_unread_messages(page, "one") > 0
        assert is_streaming(page, "one")
        assert count_unread_messages(page, "other") == 0
        assert not is_streaming(page, "other")
        assert await session("one").results() == [1]
        assert count_unread_messages(page, "one") == 0


@pytest.mark.parametrize("held", [None, {"one": ["a message"]}])
def test_unread_messages_that_are_held_otherwise_are_not_counted(held: object, warnings: list[str]) -> None:
    page = gr.Blocks(analytics_enabled=False)
    page._queue.pending_messages_per_session = held
    for _ in range(2):
        assert count_unread_messages(page, "one") == 0
    assert len(warnings) == 1
    warnings.clear()
    for _ in range(2):
        assert is_streaming(page, "one")
    assert len(warnings) == 1


@pytest.mark.parametrize("held", [None, "many"])
def test_blocks_without_a_limit_of_sessions_stay_as_they_are(held: object, warnings: list[str]) -> None:
    page = gr.Blocks(analytics_enabled=False)
    limit_sessions(page, 7)
    assert page.state_session_capacity == 7
    assert warnings == []
    page.state_session_capacity = held
    limit_sessions(page, 7)
    assert page.state_session_capacity == held
    assert len(warnings) == 1
