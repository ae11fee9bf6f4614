"""Every change that Deskmate makes to Gradio's internals, one function each.

Each says why it is needed and where Gradio has, or could have, a setting for it. Before it changes anything, it checks
that Gradio has the shape it was written for (6.31); if not, it changes nothing and logs one warning. The page works
without any of them, only slower, and it reloads if a listener's request is lost:
``DESKMATE_GRADIO_PATCHES=off`` in the environment turns all of them off.

Nothing here imports Gradio at import time, because :func:`disable_type_stubs` must run before that.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, cast

import structlog
from jinja2 import BaseLoader, Environment, TemplateNotFound

if TYPE_CHECKING:
    import gradio as gr
    from fastapi import FastAPI
    from starlette.types import ASGIApp

SWITCH = "DESKMATE_GRADIO_PATCHES"
_log = structlog.get_logger("app.ui")
_reported: set[str] = set()
_Arguments = ParamSpec("_Arguments")


class GradioChangedError(Exception):
    """Gradio does not have the shape that a patch was written for. The message says what differs."""


def _expect(condition: object, expectation: str) -> None:
    if not condition:
        raise GradioChangedError(f"expected {expectation}")


def _patch(apply: Callable[_Arguments, None]) -> Callable[_Arguments, bool]:
    """Makes ``apply`` do nothing if patches are off, and warn once instead of failing if Gradio has changed.

    The result says whether it was applied.
    """

    @wraps(apply)
    def patch(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> bool:
        if os.environ.get(SWITCH) == "off":
            return False
        try:
            apply(*args, **kwargs)
        except GradioChangedError as changed:
            _report(apply.__name__, changed)
            return False
        return True

    return patch


def _report(patch: str, changed: GradioChangedError) -> None:
    if patch not in _reported:
        _reported.add(patch)
        _log.warning(f"This version of Gradio is not the one that the patch '{patch}' is for: {changed}. Skipped it.")


# ---- type stubs


_WRITER = "gradio.component_meta"
_WRITE = "create_or_modify_pyi"


class _WithoutStubs(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        try:
            write: Any = getattr(module, _WRITE, None)
            _expect(isinstance(write, FunctionType), f"{_WRITER} to have a function {_WRITE}")
            parameters = "component_class", "class_name", "events"
            _expect(tuple(inspect.signature(write).parameters) == parameters, f"its parameters to be {parameters}")
            setattr(module, _WRITE, lambda *_: None)
        except GradioChangedError as changed:
            _report("disable_type_stubs", changed)
        try:
            _fill_docs_without_jinja(getattr(module, "EventListener", None))
        except GradioChangedError as changed:
            _report("disable_type_stubs", changed)


_COMPONENT = "{{ component }}"


def _fill_docs_without_jinja(listener_class: Any) -> None:
    """Makes ``EventListener.set_doc`` insert the component's name by itself, with the same result.

    Gradio compiles a Jinja template for each event of each component, which takes a tenth of its import time.
    """
    set_doc: Any = getattr(listener_class, "set_doc", None)
    _expect(isinstance(set_doc, FunctionType), "a method EventListener.set_doc")
    parameters = "self", "component"
    _expect(tuple(inspect.signature(set_doc).parameters) == parameters, f"its parameters to be {parameters}")

    @wraps(set_doc)
    def fill(self: Any, component: str) -> None:
        doc = getattr(getattr(self, "listener", None), "__doc__", None)
        if not isinstance(doc, str) or any(mark in doc.replace(_COMPONENT, "") for mark in ("{{", "{%", "{#")):
            set_doc(self, component)
        else:
            self.listener.__doc__ = doc.replace(_COMPONENT, component).removesuffix("\n")  # as Jinja does

    listener_class.set_doc = fill


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _WRITER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _WithoutStubs(spec.loader.name, spec.loader.path)
        return spec


@_patch
def disable_type_stubs() -> None:
    """Stops Gradio from writing type stubs for editors (``.pyi``) on import, which takes half of its import time.

    Gradio reads, parses and prints the source of each component on every import (``gradio/component_meta.py``, line
    114) and has no setting to turn this off; https://github.com/gradio-app/gradio/issues/7791 is about the import time.
    For the same reason it makes Gradio insert names into the docstrings of events without Jinja.
    Must run before Gradio is imported, and has no effect afterwards.
    """
    if _WRITER in sys.modules or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    spec = PathFinder.find_spec("gradio")
    folders = spec.submodule_search_locations if spec is not None else None
    _expect(folders and PathFinder.find_spec(_WRITER, folders), f"a module {_WRITER}")
    sys.meta_path.insert(0, _Finder())


@contextmanager
def without_type_stubs() -> Iterator[None]:
    """Creates component classes in this context without type stubs, where Gradio was imported already.

    Another app that uses the components imports Gradio first, and the stubs would be written into this package.
    """
    module = sys.modules.get(_WRITER)
    write = getattr(module, _WRITE, None)
    if os.environ.get(SWITCH) == "off" or write is None:
        yield
        return
    setattr(module, _WRITE, lambda *_: None)
    try:
        yield
    finally:
        setattr(module, _WRITE, write)


# ---- the head of the HTML


_PAGE = "frontend/index.html"
_END = "</head>"


class _HeadLoader(BaseLoader):
    """Loads Gradio's templates and adds :attr:`tags` to the end of the page's ``<head>``."""

    def __init__(self, loader: BaseLoader) -> None:
        self._loader = loader
        self.tags: list[str] = []

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        source, filename, up_to_date = self._loader.get_source(environment, template)
        if template == _PAGE and source.count(_END) == 1:
            source = source.replace(_END, "".join(self.tags) + _END)
        return source, filename, up_to_date


def _add_to_head(tags: str) -> None:
    import gradio.routes

    environment: Any = getattr(getattr(gradio.routes, "templates", None), "env", None)
    _expect(isinstance(environment, Environment), "gradio.routes.templates to be Jinja templates")
    loader = environment.loader
    if not isinstance(loader, _HeadLoader):
        try:
            source, _, _ = loader.get_source(environment, _PAGE)
        except (AttributeError, TemplateNotFound):
            raise GradioChangedError(f"expected a template {_PAGE}") from None
        _expect(source.count(_END) == 1, f"exactly one {_END} in {_PAGE}")
        environment.loader = loader = _HeadLoader(loader)
    if tags not in loader.tags:
        loader.tags.append(tags)


@_patch
def preload(tags: str) -> None:
    """Adds ``tags`` to the end of the ``<head>`` of the HTML that Gradio serves, on every Gradio page of this process.

    Gradio has no setting for it: it inserts its ``head`` argument only after its own scripts have run, several round
    trips later (``add_custom_html_head`` in ``js/spa/src/Index.svelte``;
    https://github.com/gradio-app/gradio/issues/6426), which is too late to preload anything.
    """
    _add_to_head(tags)


TIMER = r"\(performance\.now\(\)-[\w$]+\([\w$]+\)\)\/1e3\),[\w$]+&&[\w$]+\(\)"
"""The body of the timer's callback in Gradio's minified script, as a pattern of Python and of JavaScript."""


@_patch
def stop_loading_timer() -> None:
    """Stops the timer of Gradio's loading indicator from redrawing the page on every frame.

    Gradio runs it as long as the page is open, even for events that show no indicator (``start_timer`` and ``run`` in
    ``js/statustracker/static/index.svelte``). ``gradio_clock.js`` drops its animation frames. It must run before
    Gradio's scripts, which capture ``requestAnimationFrame`` when they load, so it is not deferred.
    """
    import gradio

    scripts = Path(gradio.__file__).parent.glob("templates/frontend/assets/statustracker-*.js")
    _expect(
        any(re.search(TIMER, script.read_text(encoding="utf-8")) for script in scripts),
        "the script of its loading indicator to have a timer",
    )
    _add_to_head('<script src="/ui/static/shared/gradio_clock.js"></script>')


# ---- Gradio's own files


HASHED_NAME = r"-[\w-]{8,10}\.\w+"
"""How the names of Gradio's scripts and styles end: with a hash of their content."""


@_patch
def serve_assets(app: FastAPI, serve: Callable[[Path], ASGIApp]) -> None:
    """Serves Gradio's scripts and styles in its place: compressed well and once, and for browsers to keep.

    Gradio compresses each of them for every request, in a hurry, and has browsers ask again for sixty files on each
    visit (``build_resource`` and ``BrotliMiddleware`` in ``gradio/routes.py``, lines 415 and 1293). There is no setting
    for it. Call it before the page is mounted. ``serve`` makes the ASGI app of a folder.
    """
    import gradio

    folder = Path(gradio.__file__).parent / "templates/frontend/assets"
    names = [file.name for file in folder.glob("*")]
    _expect(names, f"its scripts in {folder}")
    _expect(all(re.search(f"{HASHED_NAME}$", name) for name in names), "a hash in the name of each of its scripts")
    app.mount("/assets", serve(folder), name="gradio-assets")


# ---- lost requests


LOST = r"catch\{return\[\{error:([\w$]+)\},500\]\}.*?/run\$\{.*?\?\.error===\1;[^}]*broken:"
"""How Gradio's minified client gives a request that was lost an error of its own, and recognises it."""


@_patch
def survive_lost_requests() -> None:
    """Makes a listener in Python whose request is lost fail as others do, so that those of its ``failure`` run.

    Gradio itself ends all listeners of the page, those in the browser too, and loads the page again once the server is
    back (``on_connection_lost_cb`` in ``js/core/src/dependency.ts``; https://github.com/gradio-app/gradio/pull/12907).
    There is no setting for it. ``gradio_requests.js`` answers in place of the server.
    """
    import gradio

    scripts = Path(gradio.__file__).parent.glob("templates/frontend/assets/index-*.js")
    _expect(
        any(re.search(LOST, script.read_text(encoding="utf-8"), re.DOTALL) for script in scripts),
        "the script of its client to recognise a lost request",
    )
    _add_to_head('<script src="/ui/static/shared/gradio_requests.js" defer></script>')


# ---- the queue


@_patch
def raise_max_threads(page: gr.Blocks, max_threads: int) -> None:
    """Sets how many queued events run at once, and how many worker threads run their functions.

    ``max_threads`` is an argument of ``launch()`` (``gradio/blocks.py``, lines 3276 and 3277), which a mounted page
    does not call: without this it is 40 (https://github.com/gradio-app/gradio/issues/1442). Call it after
    ``page.queue()``.
    """
    queue = getattr(page, "_queue", None)
    _expect(isinstance(getattr(page, "max_threads", None), int), "Blocks.max_threads")
    _expect(isinstance(getattr(queue, "max_thread_count", None), int), "Queue.max_thread_count")
    page.max_threads = max_threads
    page._queue.max_thread_count = max_threads


@_patch
def limit_sessions(page: gr.Blocks, max_sessions: int) -> None:
    """Sets of how many sessions Gradio keeps the state: of the most recently used ones.

    ``state_session_capacity`` is an argument of ``launch()`` (``gradio/blocks.py``, line 3222), which a mounted page
    does not call: without this it is 10,000, and each takes some 80 KB, also for a session_hash that a program made up.
    Call it before the page is mounted.
    """
    _expect(isinstance(getattr(page, "state_session_capacity", None), int), "Blocks.state_session_capacity")
    page.state_session_capacity = max_sessions


@_patch
def wake_queue(page: gr.Blocks) -> None:
    """Makes the loops of Gradio's queue sleep until there is work: an event starts at once, and an idle queue rests.

    Gradio's loops poll instead, 1000 times a second for events and 100 times for progress updates, which takes 5 % of a
    CPU core on an idle server (``start_processing`` and ``start_progress_updates`` in ``gradio/queueing.py``, lines 504
    to 569; https://github.com/gradio-app/gradio/pull/12296). ``queue()`` has no argument for the intervals, and longer
    ones would delay every event. The loops stay Gradio's; their ``asyncio.sleep`` is replaced. Call it after
    ``page.queue()``.
    """
    queue: Any = getattr(page, "_queue", None)
    for name, interval in (
        ("start_processing", "sleep_when_free"),
        ("start_progress_updates", "progress_update_sleep_when_free"),
    ):
        loop: Any = getattr(type(queue), name, None)
        _expect(isinstance(loop, FunctionType) and inspect.iscoroutinefunction(loop), f"a coroutine Queue.{name}")
        _expect({"asyncio", "sleep", interval} <= {*loop.__code__.co_names}, f"Queue.{name} to sleep for {interval}")
        _expect(loop.__closure__ is None, f"Queue.{name} to have no closure")
    for name in ("push", "reset_iterators"):
        _expect(inspect.iscoroutinefunction(getattr(queue, name, None)), f"a coroutine Queue.{name}")
    for name in ("set_progress", "close"):
        _expect(inspect.ismethod(getattr(queue, name, None)), f"a method Queue.{name}")

    processing, progress = _Sleep(coalesces=False), _Sleep(coalesces=True)
    queue.start_processing = processing.in_place_of_asyncio(queue, "start_processing")
    queue.start_progress_updates = progress.in_place_of_asyncio(queue, "start_progress_updates")
    push, reset_iterators, set_progress, close = queue.push, queue.reset_iterators, queue.set_progress, queue.close

    async def push_and_wake(*args: Any, **kwargs: Any) -> Any:
        pushed = await push(*args, **kwargs)
        processing.wake()
        return pushed

    async def wake_and_reset_iterators(*args: Any, **kwargs: Any) -> Any:
        # The first call of process_events after an event has made room for others.
        processing.wake()
        return await reset_iterators(*args, **kwargs)

    def set_progress_and_wake(*args: Any, **kwargs: Any) -> None:
        set_progress(*args, **kwargs)
        progress.wake()

    def close_and_wake(*args: Any, **kwargs: Any) -> None:
        close(*args, **kwargs)
        processing.wake()
        progress.wake()

    queue.push, queue.reset_iterators = push_and_wake, wake_and_reset_iterators
    queue.set_progress, queue.close = set_progress_and_wake, close_and_wake


MAX_SLEEP_SECONDS = 1.0
"""The queue's loops look for work after this time even if nothing has woken them: a safety net."""


class _Sleep:
    """Replaces ``asyncio.sleep`` in a loop of Gradio's queue. :meth:`wake` ends it early."""

    def __init__(self, *, coalesces: bool) -> None:
        """``coalesces``: sleep at least the loop's own interval, so that a burst of updates is sent as one message."""
        self._coalesces = coalesces
        self._running: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}  # one for each time the loop was started

    def in_place_of_asyncio(self, queue: Any, name: str) -> Callable[[], Coroutine[Any, Any, None]]:
        """Returns the queue's method ``name`` with this sleep."""
        method = getattr(type(queue), name)

        async def run() -> None:
            woken = asyncio.Event()  # set from the first wake() until the next sleep ends, so that none is missed

            async def sleep(interval: float) -> None:
                if self._coalesces:
                    await asyncio.sleep(interval)
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_SLEEP_SECONDS):
                        await woken.wait()
                woken.clear()

            module = SimpleNamespace(**vars(asyncio) | {"sleep": sleep})
            self._running[woken] = asyncio.get_running_loop()
            try:
                await FunctionType(method.__code__, method.__globals__ | {"asyncio": module}, name)(queue)
            finally:
                del self._running[woken]

        return run

    def wake(self) -> None:
        """Ends the sleep. May be called in any thread, which progress updates do."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for woken, loop in tuple(self._running.items()):
            if loop is here:
                woken.set()
            else:
                with suppress(RuntimeError):  # its event loop is closed
                    loop.call_soon_threadsafe(woken.set)


def count_unread_messages(page: gr.Blocks, session_hash: str | None) -> int:
    """Returns how many messages the queue holds for a session; 0 if this cannot be known. Changes nothing in Gradio.

    The queue holds every message until the session's client reads it, without a limit and without telling the listener
    (``pending_messages_per_session`` in ``gradio/queueing.py``, lines 129 and 248).
    """
    try:
        unread = _messages_of(page, session_hash)
        return unread.qsize() if unread is not None else 0
    except GradioChangedError as changed:
        _report("count_unread_messages", changed)
        return 0


def is_streaming(page: gr.Blocks, session_hash: str) -> bool:
    """Whether the queue has messages for a session, or may get some; True if this cannot be known. Changes nothing.

    Gradio answers 200 to a request for any other stream and then raises an error in it, which puts a traceback into the
    log (``sse_stream`` in ``gradio/routes.py``, line 1830).
    """
    try:
        return _messages_of(page, session_hash) is not None
    except GradioChangedError as changed:
        _report("is_streaming", changed)
        return True


def _messages_of(page: gr.Blocks, session_hash: str | None) -> asyncio.Queue[Any] | None:
    messages = getattr(getattr(page, "_queue", None), "pending_messages_per_session", None)
    _expect(callable(getattr(messages, "get", None)), "Queue.pending_messages_per_session")
    unread = messages.get(session_hash)  # type: ignore[union-attr]
    _expect(unread is None or isinstance(unread, asyncio.Queue), "the messages of a session to be a queue")
    return cast("asyncio.Queue[Any] | None", unread)
