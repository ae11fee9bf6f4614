"""Every route of the process is somebody's decision, and no decision is about a route that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from app.auth.policy import MAX_NAME_BYTES, RULES, Access, rule_on
from app.main import create_app
from app.settings import AppSettings
from testing.fake_engine import FakeEngine


def routes_of(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(method, path template) of every route, mounted applications included."""
    for context in iter_route_contexts(routes):
        route = context.original_route
        if isinstance(route, Mount):
            if isinstance(route.app, StaticFiles):
                yield "GET", f"{prefix}{route.path}/{{path:path}}"
            else:
                assert route.routes, f"nobody can see what is mounted at {route.path}"
                yield from routes_of(route.routes, prefix + route.path)
            continue
        path = context.path
        assert path is not None, f"what is {route!r}?"
        assert context.methods, f"{path} speaks another protocol than HTTP"
        for method in context.methods:
            yield method, prefix + path


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    settings = AppSettings(data_dir=tmp_path_factory.mktemp("data"), _env_file=None)
    found = set(routes_of(create_app(settings, FakeEngine()).routes))
    assert ("POST", "/api/turns") in found
    assert ("POST", "/gradio_api/queue/join") in found
    return {(method, path.rstrip("/") or "/") for method, path in found}


def test_every_route_is_classified(routes: set[tuple[str, str]]) -> None:
    decided = {(method, rule.path) for rule in RULES for method in rule.methods}
    # Starlette adds HEAD wherever there is GET.
    unclassified = {
        (m, p) for m, p in routes if (m, p) not in decided and ("GET" if m == "HEAD" else m, p) not in decided
    }
    assert unclassified == set(), "add these to app/auth/policy.py, closed unless the page needs them"


def test_every_open_rule_leads_to_a_route(routes: set[tuple[str, str]]) -> None:
    opened = {(m, rule.path) for rule in RULES if rule.access is not Access.DENIED for m in rule.methods}
    assert opened - routes == set()


def test_no_rule_hides_behind_another(routes: set[tuple[str, str]]) -> None:
    for method, template in routes:
        path = re.sub(r"\{[^}]*\}", "x1", template)
        rule = rule_on("GET" if method == "HEAD" else method, path).rule
        assert rule is not None
        asked = "GET" if method == "HEAD" else method
        intended = next(r for r in RULES if r.path == template and asked in r.methods)
        assert rule.access is intended.access, f"{path} is ruled by {rule.path}"
        assert rule.session is intended.session
        assert rule.scope is intended.scope


def test_a_rule_is_found_by_the_beginning_of_a_path_as_among_all() -> None:
    paths = {re.sub(r"\{[^}]*\}", value, rule.path) for rule in RULES for value in ("x1", "api", "a/b/c")}
    for path in paths | {"/", "/nowhere", "/api", "/api/widget", "/api/nowhere/x1"}:
        matching = [rule for rule in RULES if rule.match(path) is not None]
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            of_method = next((rule for rule in matching if method in rule.methods), None)
            assert rule_on(method, path).rule is of_method, path
        allowed = {method for rule in matching if rule.access is not Access.DENIED for method in rule.methods}
        assert rule_on("BREW", path).allowed_methods == allowed


def test_a_route_that_nobody_classified_is_found() -> None:
    app = FastAPI()
    inner = FastAPI()

    @inner.post("/new")
    async def new() -> None: ...

    app.mount("/sub", inner)
    assert ("POST", "/sub/new") in set(routes_of(app.routes))


@pytest.mark.parametrize("name", ["a\0", "a\n", "\x1f", "\x7f", "a" * (MAX_NAME_BYTES + 1), "é" * 128])
def test_an_address_with_control_characters_or_a_long_name_has_no_rule(name: str) -> None:
    for path in (f"/assets/{name}", f"/gradio_api/run/{name}", f"/gradio_api/heartbeat/{name}", f"/assets/{name}/x"):
        ruling = rule_on("POST" if "/run/" in path else "GET", path)
        assert (ruling.rule, ruling.allowed_methods) == (None, frozenset())
    assert rule_on("GET", "/assets/" + "a" * MAX_NAME_BYTES).rule is not None
