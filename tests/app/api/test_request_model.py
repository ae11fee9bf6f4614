"""Bodies of ``/api`` with very many wrong entries: refused with one error, before each entry is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel, ValidationError

from app.api.chat.conversations import ConversationChange
from app.api.errors import describe_invalid
from app.api.request_model import MAX_BODY_ENTRIES, RequestModel
from app.main import create_app
from app.settings import AppSettings
from testing.fake_engine import FakeEngine
from tests.app.live_server import RunningApp

MANY = MAX_BODY_ENTRIES + 1
SENTENCE = "The request is not valid: it has more than 10000 fields and entries; send fewer."


def body_models(routes: list[Any]) -> Iterator[tuple[str, Any]]:
    """The type of each JSON body that a route of ``/api`` takes."""
    for context in iter_route_contexts(routes):
        route = context.original_route
        if isinstance(route, APIRoute) and (context.path or "").startswith("/api"):
            for field in route.dependant.body_params:
                yield str(context.path), field.field_info.annotation


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Any]]:
    settings = AppSettings(data_dir=tmp_path_factory.mktemp("data"), _env_file=None)
    return list(body_models(create_app(settings, FakeEngine()).routes))


def wrong_bodies(model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    yield {str(key): 1 for key in range(MANY)}
    for name in model.model_fields:
        yield {name: [1] * MANY}
        yield {name: {str(key): [] for key in range(MANY)}}
        yield {name: {"stop": [[1] * 100] * 100}}
        yield {name: [{str(key): 1 for key in range(100)}] * 100}


def test_every_body_of_too_many_entries_is_one_error(models: list[tuple[str, Any]]) -> None:
    assert len(models) > 20
    for path, model in models:
        assert issubclass(model, RequestModel), f"{path} takes a body that nothing limits"
        for body in wrong_bodies(model):
            with pytest.raises(ValidationError) as refused:
                model.model_validate(body)
            assert refused.value.error_count() == 1, path
            assert describe_invalid(refused.value.errors()) == (SENTENCE, None)


def test_as_many_entries_as_are_allowed_are_looked_at() -> None:
    change = ConversationChange.model_validate({"tags": ["a"] * (MAX_BODY_ENTRIES - 1)})
    assert change.tags == ["a"] * (MAX_BODY_ENTRIES - 1)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_refusal_is_one_sentence(live: RunningApp) -> None:
    answer = await live.http.patch("/api/conversations/x", json={"tags": [1] * MANY})
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, SENTENCE)
