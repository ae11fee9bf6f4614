"""What fills the context, and the prompts: counted truly, shown to their user alone, and without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from app.domain.templates import TemplateKind
from tests.app.desk import Desk

NEXT = "/api/context"


async def count(here: Desk, name: str = "ben", **body: Any) -> dict[str, Any]:
    answer = await here.clients[name].post(NEXT, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def sent(here: Desk, text: str, **body: Any) -> dict[str, Any]:
    ben = here.clients["ben"]
    turn = (await ben.post("/api/turns", json={"text": text, **body})).json()
    await ben.get(f"/api/turns/{turn['turn_id']}/events")
    return dict(turn)


async def test_each_part_of_the_next_prompt_is_counted(here: Desk) -> None:
    turn = await sent(here, "one two three", settings={"system_prompt": "Be kind.", "max_tokens": 40})
    calls = len(here.live.engine.calls)
    counted = await count(here, text="four five", conversation_id=turn["conversation_id"])
    parts = ("system_prompt", "history", "message", "template")
    shown = (await here.clients["ben"].post(f"{NEXT}/prompt", json={"text": "four five"})).json()
    assert [piece["text"] for piece in shown["pieces"]] == ["<user>", "four", "five"]
    assert [piece["is_special"] for piece in shown["pieces"]] == [True, False, False]
    whole = await here.clients["ben"].post(
        f"{NEXT}/prompt", json={"text": "four five", "conversation_id": turn["conversation_id"]}
    )
    assert sum(counted[part] for part in parts) == whole.json()["num_tokens"]
    assert (counted["history_messages"], counted["omitted_messages"], counted["reply"]) == (2, 0, 40)
    assert counted["problem"] is None
    assert len(here.live.engine.calls) == calls, "nothing was asked of the model"
    ids = (await here.clients["ben"].get(f"/api/conversations/{turn['conversation_id']}")).json()["messages"]
    assert len(ids) == 2, "nothing was sent"


async def test_a_system_prompt_is_rendered_once_for_all_that_is_counted(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await sent(here, "one", settings={"system_prompt_name": "concise"})
    rendered: list[str] = []
    templates = here.services.templates
    render = templates.render

    async def count_render(kind: TemplateKind, name: str, given: Mapping[str, str]) -> str:
        rendered.append(name)
        return await render(kind, name, given)

    monkeypatch.setattr(templates, "render", count_render)
    counted = await count(here, text="two", conversation_id=turn["conversation_id"])
    assert counted["system_prompt"] > 0
    assert rendered == ["concise"]


async def test_what_is_too_long_is_counted_and_said(here: Desk) -> None:
    here.live.engine.resize(50)
    counted = await count(here, text="word " * 60)
    assert counted["message"] > 50
    assert counted["reply"] == 0
    assert "the model reads at most 50" in counted["problem"]
    here.live.engine.resize(4096)
    refused = await here.clients["ben"].post(NEXT, json={"text": "x" * 200_001})
    assert refused.status_code == 422
    assert "at most 200,000 are accepted" in refused.json()["error"]["message"]


async def test_a_replys_prompt_is_shown_in_parts_as_it_was(here: Desk) -> None:
    first = await sent(here, "word " * 2500, settings={"system_prompt": "Be kind.", "max_tokens": 40})
    await sent(here, "later", conversation_id=first["conversation_id"])
    ben, path = here.clients["ben"], f"/api/messages/{first['message_id']}/prompt"
    shown = (await ben.get(path)).json()
    assert shown["pieces"][0] == {"text": "<system>", "num_tokens": 1, "is_special": True}
    assert (shown["num_tokens"], shown["next_offset"], shown["is_exact"]) == (2504, 2000, True)
    rest = (await ben.get(path, params={"offset": 2000})).json()
    assert (len(rest["pieces"]), rest["next_offset"]) == (504, None)
    assert not any(piece["text"] == "later" for piece in rest["pieces"])


@pytest.mark.parametrize("name", ["ada", "cyd"])
async def test_anothers_prompts_are_not_there(here: Desk, name: str) -> None:
    turn = await sent(here, "marmots alone")
    other = here.clients[name]
    hidden = await other.get(f"/api/messages/{turn['message_id']}/prompt")
    assert hidden.status_code == 404
    for path in (NEXT, f"{NEXT}/prompt"):
        refused = await other.post(path, json={"conversation_id": turn["conversation_id"]})
        assert refused.status_code == (404 if name == "ada" else 403), refused.text
        assert "marmots" not in refused.text


@pytest.mark.parametrize("offset", ["-1", str(2**31), "x"])
async def test_an_offset_out_of_range_is_refused(here: Desk, offset: str) -> None:
    turn = await sent(here, "hello")
    refused = await here.clients["ben"].get(f"/api/messages/{turn['message_id']}/prompt", params={"offset": offset})
    assert refused.status_code in (400, 422)
    assert "offset" in refused.json()["error"]["message"]


async def test_an_offset_behind_the_end_shows_nothing(here: Desk) -> None:
    turn = await sent(here, "hello")
    shown = (await here.clients["ben"].get(f"/api/messages/{turn['message_id']}/prompt?offset=99999")).json()
    assert (shown["pieces"], shown["next_offset"]) == ([], None)
