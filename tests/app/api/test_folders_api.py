"""Folders and changes of many conversations: whose they are, what they keep, and what is refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from app.domain.chat_settings import ChatSettings
from app.domain.ids import new_id
from app.store.chat.folders import MAX_FOLDERS
from tests.app.desk import Desk


async def begin(here: Desk, user: str, *titles: str) -> list[str]:
    conversations = here.services.conversations
    return [await conversations.create(here.ids[user], title, ChatSettings()) for title in titles]


async def listed(here: Desk, user: str, **query: str) -> list[str]:
    answer = await here.clients[user].get("/api/conversations", params=query)
    assert answer.status_code == 200, answer.text
    return [item["title"] for item in answer.json()["items"]]


async def folders(here: Desk, user: str) -> dict[str, int]:
    answer = await here.clients[user].get("/api/folders")
    return {folder["name"]: folder["conversations"] for folder in answer.json()}


async def test_a_folder_lists_its_own_counts_them_and_leaves_them_when_it_goes(here: Desk) -> None:
    ben = here.clients["ben"]
    a, b, _ = await begin(here, "ben", "alpha", "beta", "gamma")
    made = await ben.post("/api/folders", json={"name": "  Work\n"})
    assert (made.status_code, made.json()["name"]) == (201, "Work")
    folder = made.json()["id"]
    for id in (a, b):
        assert (await ben.patch(f"/api/conversations/{id}", json={"folder_id": folder})).status_code == 204
    assert await listed(here, "ben", folder=folder) == ["beta", "alpha"]
    assert await listed(here, "ben", folder="none") == ["gamma"]
    assert await listed(here, "ben", folder=folder, query="alp") == ["alpha"]
    assert await listed(here, "ben", folder=folder, query="gam") == []
    assert await listed(here, "ben") == ["gamma", "beta", "alpha"], "programs see all of them, as before"
    assert await folders(here, "ben") == {"Work": 2}
    await ben.patch(f"/api/conversations/{b}", json={"archived": True})
    assert await folders(here, "ben") == {"Work": 1}
    await ben.patch(f"/api/conversations/{a}", json={"title": "renamed"})
    assert await listed(here, "ben", folder=folder) == ["renamed"], "what is left out stays"
    await ben.patch(f"/api/conversations/{a}", json={"folder_id": None})
    assert await listed(here, "ben", folder=folder) == []
    await ben.patch(f"/api/conversations/{a}", json={"folder_id": folder})
    assert (await ben.patch(f"/api/folders/{folder}", json={"name": "Play"})).status_code == 204
    assert await folders(here, "ben") == {"Play": 1}
    assert (await ben.delete(f"/api/folders/{folder}")).status_code == 204
    assert await folders(here, "ben") == {}
    assert await listed(here, "ben", folder="none") == ["gamma", "renamed"]


async def test_nobody_reaches_the_folders_or_chats_of_another_user(here: Desk) -> None:
    ada, ben, cyd = (here.clients[user] for user in ("ada", "ben", "cyd"))
    (of_ben,), (of_ada,) = await begin(here, "ben", "private"), await begin(here, "ada", "hers")
    folder = (await ben.post("/api/folders", json={"name": "Work"})).json()["id"]
    hers = (await ada.post("/api/folders", json={"name": "Work"})).json()["id"]
    for answer in (
        await ada.patch(f"/api/folders/{folder}", json={"name": "Mine"}),
        await ada.delete(f"/api/folders/{folder}"),
        await ada.patch(f"/api/conversations/{of_ada}", json={"folder_id": folder}),
        await ben.patch(f"/api/conversations/{of_ada}", json={"folder_id": folder}),
        await ada.post("/api/conversations/change", json={"ids": [of_ada], "folder_id": folder}),
        await ada.post("/api/conversations/change", json={"ids": [of_ben], "archived": True, "add_tags": ["x"]}),
        await ada.post("/api/conversations/delete", json={"ids": [of_ben]}),
        await ada.patch("/api/folders/nonsense", json={"name": "Mine"}),
    ):
        assert answer.status_code == 404, answer.text
    both = {"ids": [of_ben, of_ada], "folder_id": hers, "add_tags": ["t"], "archived": True}
    assert (await ada.post("/api/conversations/change", json=both)).json() == {"changed": 1}
    chosen = (await ada.post("/api/export", json={"ids": [of_ben, of_ada]})).json()
    assert [each["title"] for each in chosen["conversations"]] == ["hers"]
    gone = (await ada.post("/api/conversations/delete", json={"ids": [of_ben, of_ada]})).json()
    assert gone["conversation_ids"] == [of_ada]
    assert (await ben.post(f"/api/deletions/{gone['deletion_id']}/undo")).status_code == 404
    assert await listed(here, "ben") == ["private"]
    assert await listed(here, "ada", folder=folder) == []
    assert await folders(here, "ben") == {"Work": 0}
    for method, path, body in (
        ("POST", "/api/folders", {"name": "x"}),
        ("PATCH", f"/api/folders/{folder}", {"name": "x"}),
        ("DELETE", f"/api/folders/{folder}", None),
        ("POST", "/api/conversations/change", {"ids": [of_ben]}),
        ("POST", "/api/conversations/delete", {"ids": [of_ben]}),
    ):
        assert (await cyd.request(method, path, json=body)).status_code == 403, path


async def test_a_change_of_many_chats_is_made_as_a_whole_or_not_at_all(here: Desk) -> None:
    ben = here.clients["ben"]
    (id,) = await begin(here, "ben", "alpha")
    folder = (await ben.post("/api/folders", json={"name": "Work"})).json()["id"]
    wrong = {"ids": [id], "add_tags": ["t"], "archived": True, "folder_id": new_id()}
    assert (await ben.post("/api/conversations/change", json=wrong)).status_code == 404
    tags = [f"t{number}" for number in range(20)]
    await ben.patch(f"/api/conversations/{id}", json={"tags": tags})
    one_more = {"ids": [id], "folder_id": folder, "archived": True, "add_tags": ["t"]}
    assert (await ben.post("/api/conversations/change", json=one_more)).status_code == 422
    assert await listed(here, "ben", folder="none") == ["alpha"]
    assert sorted((await ben.get("/api/tags")).json()) == sorted(tags)
    assert (await ben.post("/api/conversations/change", json={"ids": [id]})).json() == {"changed": 0}


async def test_deleted_chats_are_nowhere_until_they_are_restored_as_they_were(here: Desk) -> None:
    ben = here.clients["ben"]
    a, b, c = await begin(here, "ben", "alpha", "beta", "gamma")
    folder = (await ben.post("/api/folders", json={"name": "Work"})).json()["id"]
    await ben.post("/api/conversations/change", json={"ids": [a, b], "folder_id": folder, "add_tags": ["blue"]})
    answer = await ben.post("/api/conversations/delete", json={"ids": [a, b, new_id(), "nonsense", a]})
    deletion = answer.json()
    assert deletion["conversation_ids"] == sorted([a, b])
    assert await listed(here, "ben") == ["gamma"]
    assert await listed(here, "ben", query="alpha") == []
    assert await folders(here, "ben") == {"Work": 0}
    assert (await ben.get("/api/tags")).json() == {}
    assert (await ben.get("/api/account/storage")).json()["conversations"] == 1
    exported = (await ben.get("/api/export")).json()
    assert [each["id"] for each in exported["conversations"]] == [c]
    for path in (f"/api/conversations/{a}", f"/api/conversations/{a}/export"):
        assert (await ben.get(path)).status_code == 404
    assert (await ben.post("/api/turns", json={"text": "hi", "conversation_id": a})).status_code == 404
    assert (await ben.post("/api/conversations/delete", json={"ids": [a]})).status_code == 404
    restored = await ben.post(f"/api/deletions/{deletion['deletion_id']}/undo")
    assert restored.json()["conversation_ids"] == sorted([a, b])
    assert await listed(here, "ben", folder=folder, tag="blue") == ["beta", "alpha"]
    assert (await ben.post(f"/api/deletions/{deletion['deletion_id']}/undo")).status_code == 404


async def test_an_export_carries_folders_and_an_import_brings_them_back(here: Desk) -> None:
    ada, ben = here.clients["ada"], here.clients["ben"]
    a, _ = await begin(here, "ben", "alpha", "beta")
    folder = (await ben.post("/api/folders", json={"name": "Wörk"})).json()["id"]
    await ben.patch(f"/api/conversations/{a}", json={"folder_id": folder})
    file = (await ben.get("/api/export")).content
    assert [each.get("folder") for each in json.loads(file)["conversations"]] == ["Wörk", None]
    kind = {"content-type": "application/octet-stream"}
    assert (await ada.post("/api/import", content=file, headers=kind)).json()["imported"] == 2
    assert await folders(here, "ada") == {"Wörk": 1}
    await ben.post("/api/conversations/delete", json={"ids": [a]})
    again = await ben.post("/api/import", content=file, headers=kind)
    assert again.json() == {"imported": 1, "already_there": 1}, "what was just deleted comes back from its file"
    assert await folders(here, "ben") == {"Wörk": 1}
    broken = file.replace("Wörk".encode(), b"x" * 61)
    assert (await ben.post("/api/import", content=broken, headers=kind)).status_code == 422


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/folders", {"name": " \n"}, "1 to 60 characters"),
        ("/api/folders", {"name": "x" * 61}, "1 to 60 characters"),
        ("/api/folders", {"name": "Work"}, "already"),
        ("/api/conversations/change", {"ids": []}, "ids"),
        ("/api/conversations/delete", {"ids": ["x"] * 501}, "ids"),
        ("/api/conversations/change", {"ids": ["ID"], "add_tags": [""]}, "at least one character"),
        ("/api/conversations/change", {"ids": ["ID"], "add_tags": ["x" * 51]}, "at most 50"),
        ("/api/conversations/change", {"ids": ["ID"], "folder_id": "gone"}, "no such folder"),
        ("/api/export", {"ids": ["ID"], "format": "pdf"}, "format"),
    ],
)
async def test_what_is_wrong_is_said(here: Desk, path: str, body: dict[str, object], said: str) -> None:
    ben = here.clients["ben"]
    (id,) = await begin(here, "ben", "alpha")
    await ben.post("/api/folders", json={"name": "Work"})
    if body.get("ids") == ["ID"]:
        body = {**body, "ids": [id]}
    refused = await ben.post(path, json=body)
    assert refused.status_code in (400, 404, 409, 422), refused.text
    assert said in refused.json()["error"]["message"]


async def test_many_folders_at_once_keep_to_the_limit_and_to_one_of_each_name(here: Desk) -> None:
    ben = here.clients["ben"]
    for number in range(MAX_FOLDERS - 2):
        await here.services.folders.create(here.ids["ben"], f"f{number}")
    answers = await asyncio.gather(*(ben.post("/api/folders", json={"name": f"new {n % 4}"}) for n in range(12)))
    assert {answer.status_code for answer in answers} == {201, 409}
    kept = await folders(here, "ben")
    assert len(kept) == MAX_FOLDERS


async def test_a_folder_that_goes_while_chats_are_moved_into_it_loses_none_of_them(here: Desk) -> None:
    ben = here.clients["ben"]
    ids = await begin(here, "ben", *"abcdefgh")
    folder = (await ben.post("/api/folders", json={"name": "Work"})).json()["id"]
    moves = [ben.patch(f"/api/conversations/{id}", json={"folder_id": folder}) for id in ids]
    await asyncio.gather(*moves[:4], ben.delete(f"/api/folders/{folder}"), *moves[4:])
    assert sorted(await listed(here, "ben", folder="none")) == list("abcdefgh")
