"""The knowledge base over HTTP: what each role may, and what another user never sees."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import UploadFile

from app.domain.knowledge import NewChunk
from app.domain.roles import UserRole
from app.knowledge.questions import read_questions
from app.store.db.knowledge_models import KNOWLEDGE_COLLECTION_ID
from app.store.knowledge.reading import ReadingQueue
from testing.documents import save_chunks
from tests.app.desk import Desk, desk, wait_for_replies

TEXT = "Refunds are paid within ten days."
COLLECTIONS, DOCUMENTS = "/api/kb/collections", "/api/kb/documents"
QUESTIONS = "/api/kb/questions"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path / "data", gradio=False) as opened:
        await opened.services.knowledge.ingest.close()  # it would claim the tests' documents
        for name, role in (("ada", UserRole.ADMIN), ("gus", UserRole.AGENT), ("vera", UserRole.VIEWER)):
            await opened.add(name, role)
        yield opened


async def upload(http: httpx.AsyncClient, name: str = "terms.md", **fields: str) -> httpx.Response:
    return await http.post(DOCUMENTS, files={"file": (name, TEXT.encode())}, data=fields)


FILE = b'\r\n--x\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n'
END = b"\r\n--x--\r\n"


async def form(http: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await http.post(DOCUMENTS, content=content, headers={"Content-Type": "multipart/form-data; boundary=x"})


async def read(here: Desk) -> None:
    queue = ReadingQueue(here.services.database, "test")
    while (job := await queue.claim_next()) is not None:
        whole = NewChunk(heading="Refunds", start=0, end=len(TEXT), tokens=8)
        assert await save_chunks(queue, job, "Terms", job.data.decode(), [whole])


async def test_a_document_from_upload_to_removal(here: Desk) -> None:
    ada = here.clients["ada"]
    added = await upload(ada)
    assert (added.status_code, added.json()["version"], added.json()["state"]) == (202, 1, "waiting")
    id = added.json()["id"]
    await read(here)
    document = (await ada.get(f"{DOCUMENTS}/{id}")).json()
    assert (document["state"], document["chunks"], document["bytes"]) == ("ready", 1, len(TEXT))
    assert [one["id"] for one in (await ada.get(DOCUMENTS)).json()["documents"]] == [id]
    chunks = (await ada.get(f"{DOCUMENTS}/{id}/chunks")).json()
    assert (chunks["chunks"][0]["text"], chunks["next_cursor"]) == (TEXT, None)
    span = (await ada.get(f"{DOCUMENTS}/{id}/text", params={"start": 8, "end": 11})).json()
    assert (span["text"], span["length"]) == ("are", len(TEXT))
    (passage,) = (await ada.get("/api/kb/search", params={"q": "refund"})).json()["passages"]
    assert set(passage) == {"document_id", "version", "title", "heading", "text", "start", "end", "score"}
    assert (await ada.delete(f"{DOCUMENTS}/{id}")).status_code == 204
    assert (await ada.get("/api/kb/search", params={"q": "refund"})).json() == {"passages": []}


async def test_each_role_does_what_it_may(here: Desk) -> None:
    ada = here.clients["ada"]
    shared = (await upload(ada)).json()["id"]
    made = (await ada.post(COLLECTIONS, json={"name": "Other", "everyone": True})).json()["id"]
    member = f"{COLLECTIONS}/{made}/members/{here.ids['gus']}"
    doors: list[tuple[str, str, Any, str]] = [
        ("GET", COLLECTIONS, None, "agv"),
        ("GET", DOCUMENTS, None, "agv"),
        ("GET", f"{DOCUMENTS}/{shared}", None, "agv"),
        ("GET", f"{DOCUMENTS}/{shared}/chunks", None, "agv"),
        ("GET", "/api/kb/search?q=refund", None, "agv"),
        ("POST", COLLECTIONS, {"name": "New"}, "a"),
        ("PATCH", f"{COLLECTIONS}/{made}", {"description": "d"}, "a"),
        ("GET", f"{COLLECTIONS}/{made}/members", None, "a"),
        ("GET", f"{COLLECTIONS}/{made}/use", None, "a"),
        ("PUT", member, {"may_edit": True}, "a"),
        ("DELETE", member, None, "a"),
        ("DELETE", f"{DOCUMENTS}/{shared}", None, "a"),
        ("DELETE", f"{COLLECTIONS}/{made}", None, "a"),
    ]
    nobody = here.client()
    for method, path, given, allowed in doors:
        assert (await nobody.request(method, path, json=given)).status_code == 401, f"nobody {method} {path}"
        for name in ("vera", "gus", "ada"):
            answer = await here.clients[name].request(method, path, json=given)
            assert answer.is_success == (name[0] in allowed), f"{name} {method} {path}: {answer.text}"
            assert answer.is_success or answer.status_code == 403
    assert (await upload(nobody)).status_code == 401
    assert (await upload(here.clients["vera"])).status_code == 403
    assert (await upload(here.clients["gus"])).status_code == 403  # may use it, not edit it


async def test_a_member_edits_and_another_user_never_learns_of_it(here: Desk) -> None:
    ada, gus, vera = (here.clients[name] for name in ("ada", "gus", "vera"))
    secret = (await ada.post(COLLECTIONS, json={"name": "Salaries"})).json()["id"]
    await ada.put(f"{COLLECTIONS}/{secret}/members/{here.ids['gus']}", json={"may_edit": True})
    id = (await upload(gus, collection=secret)).json()["id"]
    await read(here)
    found = await gus.get("/api/kb/search", params={"q": "refund", "collection": secret})
    assert len(found.json()["passages"]) == 1
    missing = "0198c000-0000-7000-8000-000000000009"
    for path in (
        "/api/kb/search?q=refund&collection={c}",
        DOCUMENTS + "?collection={c}",
        DOCUMENTS + "/{d}",
        DOCUMENTS + "/{d}/text",
        DOCUMENTS + "/{d}/chunks",
    ):
        theirs = await vera.get(path.format(c=secret, d=id))
        nothing = await vera.get(path.format(c=missing, d=missing))
        assert (theirs.status_code, theirs.json()) == (404, nothing.json()) == (nothing.status_code, nothing.json())
    assert (await vera.get("/api/kb/search?q=refund")).json() == {"passages": []}
    assert (await vera.get(DOCUMENTS)).json()["documents"] == []
    assert [one["id"] for one in (await vera.get(COLLECTIONS)).json()["collections"]] == [KNOWLEDGE_COLLECTION_ID]
    assert (await gus.delete(f"{DOCUMENTS}/{id}")).status_code == 204


async def test_bad_uploads_get_a_sentence(here: Desk) -> None:
    ada = here.clients["ada"]
    for answer, status in (
        (await upload(ada, "setup.exe"), 422),
        (await ada.post(DOCUMENTS, data={"collection": "x"}, files={"other": ("a.md", b"x")}), 422),
        (await ada.post(DOCUMENTS, content=b"--x", headers={"Content-Type": "multipart/form-data"}), 422),
        (await ada.post(DOCUMENTS, json={}), 415),
        (await form(ada, b""), 422),
        (await form(ada, FILE % b"" + b"cut off"), 422),
        (await form(ada, FILE % b"a.md" + b"cut off"), 422),
        (await form(ada, FILE % b"a.md" + b"1" + FILE % b"b.md" + b"2" + END), 422),
        (await form(ada, b"--x\r\n" + b"A: b\r\n" * 20_000), 422),
        (await form(ada, b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nx' + END), 422),
        (await ada.post(DOCUMENTS, files={"file": ("big.txt", bytes(51 << 20))}), 413),
        (await here.clients["vera"].post(DOCUMENTS, files={"file": ("big.txt", bytes(51 << 20))}), 403),
        (await upload(ada, collection="nonsense"), 404),
        (await ada.get(f"{DOCUMENTS}/%00"), 404),
        (await ada.get(DOCUMENTS, params={"cursor": "x"}), 422),
        (await ada.get("/api/kb/search", params={"q": "x", "way": "dense"}), 501),
        (await ada.delete(f"{COLLECTIONS}/{KNOWLEDGE_COLLECTION_ID}"), 409),
    ):
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["message"]


async def test_a_file_above_the_limit_is_refused_while_it_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose length is not said, and no more of it than the limit is written to the disk."""
    written = 0
    write = UploadFile.write

    async def counted(file: UploadFile, data: bytes) -> None:
        nonlocal written
        written += len(data)
        await write(file, data)

    monkeypatch.setattr(UploadFile, "write", counted)
    async with desk(tmp_path / "data", gradio=False, knowledge_max_file_mb=1, max_import_mb=200) as here:
        ada = await here.add("ada", UserRole.ADMIN)
        await here.services.knowledge.ingest.close()

        async def pieces(mebibytes: int) -> AsyncIterator[bytes]:
            yield FILE % b"big.txt"
            for _ in range(16 * mebibytes):
                yield bytes(64 * 1024)
            yield END

        header = {"Content-Type": "multipart/form-data; boundary=x"}
        for mebibytes in (3, 40):
            answer = await ada.post(DOCUMENTS, content=pieces(mebibytes), headers=header)
            assert (answer.status_code, "larger than 1 MiB" in answer.text) == (413, True)
        assert written <= 2 * (1 << 20) + 200_000
        assert (await ada.post(DOCUMENTS, content=pieces(1), headers=header)).status_code == 202
        assert [one["bytes"] for one in (await ada.get(DOCUMENTS)).json()["documents"]] == [1 << 20]


@pytest.mark.parametrize("said", [-40, 0, +40, 10**9])
async def test_a_body_that_lies_about_its_length_adds_nothing(here: Desk, said: int) -> None:
    """Said to be longer, the connection ends before it; said to be shorter, what follows is no part of it."""
    ada = here.clients["ada"]
    body = FILE % b"terms.md" + TEXT.encode() + END
    cookie = "; ".join(f"{name}={value}" for name, value in ada.cookies.items())
    url = httpx.URL(here.live.url)
    head = (
        f"POST {DOCUMENTS} HTTP/1.1\r\nHost: {url.host}\r\nCookie: {cookie}\r\nContent-Length: {len(body) + said}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(head.encode() + body)
    if said > 0:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    if said == 0:  # the request is right but for its length
        assert answer.split()[1] == b"202", answer
        return
    if answer:
        assert answer.split()[1] in (b"400", b"413", b"422"), answer
    assert (await ada.get(DOCUMENTS)).json()["documents"] == []
    assert (await upload(ada)).status_code == 202  # the server goes on


async def test_many_large_uploads_at_once_are_all_stored(here: Desk) -> None:
    ada = here.clients["ada"]
    files = [(f"{number}.txt", bytes([65 + number]) * (2 << 20)) for number in range(8)]
    added = await asyncio.gather(*(ada.post(DOCUMENTS, files={"file": file}) for file in files))
    assert {answer.status_code for answer in added} == {202}
    assert len((await ada.get(DOCUMENTS)).json()["documents"]) == 8


async def test_names_are_shown_without_what_acts_on_a_screen(here: Desk) -> None:
    ada = here.clients["ada"]
    for sent, kept in (
        ("../../etc/a.md", "a.md"),
        ("C:\\Users\\ada\\b.md", "b.md"),
        ("clear\x1b[2J the\x9b screen.md", "clear [2J the screen.md"),
        ("bill \u202eexe.md", "bill exe.md"),
        ("möwe 🙂 \u06cc\u200c.md", "möwe 🙂 \u06cc\u200c.md"),
        ("a" * 497 + ".md", "a" * 497 + ".md"),
        ("a" * 498 + ".md", None),
        ("a" * 10_000 + ".md", None),
        ("..", None),
        ("/", None),
    ):
        answer = await upload(ada, sent)
        assert answer.status_code == (202 if kept else 422), (sent, answer.text)
        if kept:
            assert (await ada.get(f"{DOCUMENTS}/{answer.json()['id']}")).json()["name"] == kept


async def test_uploads_of_one_name_at_once_are_versions(here: Desk) -> None:
    ada = here.clients["ada"]
    for texts in ([b"%d" % n for n in range(8)], [b"same"] * 8):
        files = [("terms.md", text) for text in texts]
        added = await asyncio.gather(*(ada.post(DOCUMENTS, files={"file": file}) for file in files))
        assert {answer.status_code for answer in added} <= {202, 409}
        newest = max(answer.json()["version"] for answer in added if answer.is_success)
        (document,) = (await ada.get(DOCUMENTS)).json()["documents"]
        assert document["newest"] == newest


async def test_another_website_cannot_upload(here: Desk) -> None:
    files = {"file": ("terms.md", b"x")}
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        answer = await here.clients["ada"].post(DOCUMENTS, files=files, headers=headers)
        assert answer.status_code == 403


async def test_a_chat_takes_no_collection_that_its_user_may_not_use(here: Desk) -> None:
    ada, gus = here.clients["ada"], here.clients["gus"]
    secret = (await ada.post(COLLECTIONS, json={"name": "Salaries"})).json()["id"]
    begun = (await gus.post("/api/turns", json={"text": "Hello"})).json()["conversation_id"]
    await wait_for_replies(here)  # what is asked while one is written is a conflict
    address = f"/api/conversations/{begun}"
    before = (await gus.get(address)).json()["settings"]
    missing = "0198c000-0000-7000-8000-000000000009"
    refusals: list[tuple[str, ...]] = []  # of each collection, at all doors
    for id in (secret, missing, "nonsense", "x\0", ""):
        said: list[str] = []
        chosen = {**before, "collections": [KNOWLEDGE_COLLECTION_ID, id]}
        for answer in (
            await gus.patch(address, json={"title": "New", "settings": chosen}),
            await gus.post("/api/turns", json={"text": "?!", "settings": chosen}),
            await gus.post("/api/turns", json={"text": "Pay?", "collections": [id]}),
            await gus.post("/api/turns", json={"text": "Pay?", "collections": [id], "conversation_id": begun}),
            await gus.post("/api/turns", json={"text": "Pay?", "collections": [id], "temporary": True}),
            await gus.post(f"{address}/draft", json={"text": "Pay?", "collections": [id]}),
        ):
            assert answer.status_code == 404, (id, answer.request.url, answer.text)
            said.append(answer.json()["error"]["message"])
        refusals.append(tuple(said))
    assert len(set(refusals)) == 1  # no door says whether there is such a collection
    assert len(set(refusals[0])) == 1  # and all say the same
    after = (await gus.get(address)).json()
    assert (after["settings"], after["title"]) == (before, "Hello")
    assert len((await gus.get("/api/conversations")).json()["items"]) == 1
    await ada.put(f"{COLLECTIONS}/{secret}/members/{here.ids['gus']}", json={})
    allowed = await gus.patch(address, json={"settings": {**before, "collections": [secret]}})
    assert allowed.status_code == 204
    assert (await gus.post("/api/turns", json={"text": "x" * 5000, "conversation_id": begun})).status_code == 201


async def test_before_a_collection_is_deleted_an_admin_sees_what_uses_it(here: Desk) -> None:
    ada, gus = here.clients["ada"], here.clients["gus"]
    used = (await ada.post(COLLECTIONS, json={"name": "Orders", "everyone": True})).json()["id"]
    await upload(ada, collection=used)
    mine = {}
    for http, count in ((ada, 2), (gus, 3)):
        for number in range(count):
            begun = await http.post("/api/turns", json={"text": f"Where is {number}?", "collections": [used]})
            mine[begun.json()["conversation_id"]] = http
    prompt = {"system_prompt": f"About {used}."}  # it names the collection, and does not use it
    assert (await gus.post("/api/turns", json={"text": "Hello", "settings": prompt})).status_code == 201
    use = (await ada.get(f"{COLLECTIONS}/{used}/use")).json()
    assert (use["can_delete"], use["documents"], use["chats"], use["inboxes"]) == (True, 1, 5, [])
    assert {chat["id"] for chat in use["own_chats"]} == {id for id, http in mine.items() if http is ada}
    assert (await ada.get(f"{COLLECTIONS}/{KNOWLEDGE_COLLECTION_ID}/use")).json()["can_delete"] is False
    assert (await ada.get(f"{COLLECTIONS}/nonsense/use")).status_code == 404


def around_today() -> dict[str, str]:
    today = datetime.now(UTC).date()
    return {"first": str(today - timedelta(days=1)), "last": str(today + timedelta(days=1))}


async def test_a_deleted_collection_is_taken_out_of_inboxes(here: Desk) -> None:
    ada = here.clients["ada"]
    gone, kept = [
        (await ada.post(COLLECTIONS, json={"name": name, "everyone": True})).json()["id"] for name in ("Gone", "Kept")
    ]
    inboxes = {
        name: (await ada.post("/api/inboxes", json={"name": name, "collections": collections})).json()["id"]
        for name, collections in {"Web": [gone, kept], "Mail": [gone], "Other": [kept]}.items()
    }
    greeting = {"greeting": f"About {gone}"}  # it names the collection, and does not use it
    assert (await ada.patch(f"/api/inboxes/{inboxes['Other']}", json=greeting)).status_code == 200
    use = (await ada.get(f"{COLLECTIONS}/{gone}/use")).json()
    assert use["inboxes"] == [{"id": inboxes[name], "name": name} for name in ("Mail", "Web")]
    for name, status in (("gus", 403), ("vera", 403)):
        assert (await here.clients[name].get(f"{COLLECTIONS}/{gone}/use")).status_code == status
        assert (await here.clients[name].delete(f"{COLLECTIONS}/{gone}")).status_code == status
    assert (await here.client().delete(f"{COLLECTIONS}/{gone}")).status_code == 401
    assert (await ada.delete(f"{COLLECTIONS}/{gone}")).status_code == 204
    left = {one["name"]: one["collections"] for one in (await ada.get("/api/inboxes")).json()["inboxes"]}
    assert left == {"Web": [kept], "Mail": [], "Other": [kept]}
    log = (await ada.get("/api/desk/audit", params={**around_today(), "action": "inbox_changed"})).json()["items"]
    told = [one["target"] for one in log if one["details"] == {"fields": "collections"}]
    assert {*told} == {inboxes["Mail"], inboxes["Web"]}


async def test_the_audit_log_tells_what_was_removed(here: Desk) -> None:
    ada, days = here.clients["ada"], around_today()
    for name in ("Überblick.md", "kept.md"):
        added = (await upload(ada, name)).json()["id"]
        if name != "kept.md":
            assert (await ada.delete(f"{DOCUMENTS}/{added}")).status_code == 204
    entries = (await ada.get("/api/desk/audit", params=days)).json()["items"]
    told = [(one["action"], one["details"].get("name")) for one in entries if one["action"].startswith("document")]
    assert {*told} == {
        ("document_added", "Überblick.md"),
        ("document_removed", "Überblick.md"),
        ("document_added", "kept.md"),
    }
    table = await ada.get("/api/desk/audit/csv", params=days)
    rows = [row for row in csv.DictReader(io.StringIO(table.text)) if row["action"] == "document_removed"]
    assert [json.loads(row["details"])["name"] for row in rows] == ["Überblick.md"]
    assert json.loads(rows[0]["names"]) == {KNOWLEDGE_COLLECTION_ID: "Knowledge"}
    assert TEXT not in table.text
    for client, status in ((here.clients["gus"], 403), (here.clients["vera"], 403), (here.client(), 401)):
        refused = await client.get("/api/desk/audit/csv", params=days)
        assert refused.status_code == status
        assert "blick" not in refused.text


async def test_questions_are_marked_and_exported_by_editors_only(here: Desk) -> None:
    ada = here.clients["ada"]
    await upload(ada)
    await read(here)
    (passage,) = (await ada.get("/api/kb/search", params={"q": "refund"})).json()["passages"]
    place = {name: passage[name] for name in ("document_id", "version", "start", "end")}
    mark = {"question": "When are refunds paid?", **place}
    async with here.client() as nobody:
        for http, status in ((nobody, 401), (here.clients["vera"], 403), (here.clients["gus"], 403), (ada, 201)):
            assert (await http.post(QUESTIONS, json=mark)).status_code == status
        for path in (QUESTIONS, f"{QUESTIONS}/file"):
            assert (await nobody.get(path)).status_code == 401
    assert (await ada.post(QUESTIONS, json=mark)).status_code == 201  # a double click
    (made,) = (await ada.get(QUESTIONS)).json()["questions"]
    assert (made["answer"], made["document"]) == (TEXT, "terms.md")
    file = await ada.get(f"{QUESTIONS}/file", params={"collection": KNOWLEDGE_COLLECTION_ID})
    assert "questions.jsonl" in file.headers["Content-Disposition"]
    (question,) = read_questions(file.text)
    assert question.text == "When are refunds paid?"
    assert question.is_answered_by(passage["text"])
    for name in ("gus", "vera"):
        assert (await here.clients[name].get(QUESTIONS)).json() == {"questions": []}
        assert (await here.clients[name].get(f"{QUESTIONS}/file")).text == ""
        refused = await here.clients[name].delete(f"{QUESTIONS}/{made['id']}")
        assert refused.status_code == (404 if name == "gus" else 403)
    for change, status in (
        ({"question": " "}, 422),
        ({"question": "x" * 2001}, 422),
        ({"document_id": "x"}, 404),
        ({"version": 9}, 404),
        ({"start": 5, "end": 5}, 422),
        ({"end": 2**31}, 422),
    ):
        answer = await ada.post(QUESTIONS, json={**mark, **change})
        assert answer.status_code == status, (change, answer.text)
    assert (await ada.get(QUESTIONS, params={"collection": "nonsense"})).json() == {"questions": []}
    assert (await ada.delete(f"{QUESTIONS}/{made['id']}")).status_code == 204
    assert (await ada.delete(f"{QUESTIONS}/{made['id']}")).status_code == 404
