"""The widget's API over a real server: visitors, the bot's words as they come, people, and who is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from joserfc import jwt
from joserfc.jwk import OctKey

from app.auth.rate_limits import RateLimit, RateLimiter
from app.domain.attachments import MAX_ATTACHMENT_BYTES, MAX_UNSENT
from app.domain.roles import UserRole
from testing.databases import PostgresServer
from testing.knowledge import passage
from testing.waiting import eventually
from tests.app.api.widget import Visitor, decision, inbox_with_source, make_inbox, visit
from tests.app.desk import Desk, desk
from tests.app.live_server import reset_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWER = decision("answer", "sources_answer", 1)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgresql"])
async def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """One server for all tests; each has an inbox of its own."""
    server: PostgresServer | None = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    url = server.migrated() if server is not None else None
    folder = tmp_path_factory.mktemp("data")
    async with desk(folder, gradio=False, database_url=url, checkpoint_seconds=0.05) as running:
        for name, role in (("ada", UserRole.ADMIN), ("ben", UserRole.AGENT), ("cyd", UserRole.VIEWER)):
            await running.add(name, role)
        yield running
    if server is not None and url is not None:
        server.recycle(url)


@pytest_asyncio.fixture(loop_scope="module")
async def here(opened: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    # A bot goes on when its test has seen enough, and would take the next test's script.
    await eventually(lambda: not opened.services._bot._tasks and opened.live.engine.running == 0)
    reset_engine(opened.live.engine)
    widget = opened.services.widget
    assert widget is not None
    monkeypatch.setattr(widget, "_limiter", RateLimiter())  # all tests have one address
    return opened


@pytest_asyncio.fixture(loop_scope="module")
async def inbox(here: Desk) -> dict[str, Any]:
    return await inbox_with_source(here, passage("Parcels can be returned within 30 days."))


async def case_of(here: Desk, inbox: dict[str, Any]) -> dict[str, Any]:
    listed = (await here.clients["ben"].get(f"/api/cases?view=all&inbox={inbox['id']}")).json()["cases"]
    assert len(listed) == 1
    whole: dict[str, Any] = (await here.clients["ben"].get(f"/api/cases/{listed[0]['id']}")).json()
    return whole


async def test_a_visitor_is_answered_with_sources_while_the_bot_writes(here: Desk, inbox: dict[str, Any]) -> None:
    engine, end = here.live.engine, asyncio.Event()
    engine.say(ANSWER)
    engine.say("You can return it ", "within 30 days [1].", gates={1: end})
    visitor = await visit(here.live.http, inbox, language="de-AT", time_zone="Europe/Vienna")
    assert visitor.session["case"] is None
    assert visitor.session["messages"] == []
    assert visitor.session["inbox"]["name"] == "Shop"
    async with visitor.events(visitor.session["last_event_id"]) as events:
        written = await visitor.write("How long may I return a parcel?")
        assert written["case"]["status"] == "bot"
        first = await events.until("message", author__kind="bot")
        assert first["status"] == "streaming"
        end.set()
        whole = await events.until("message", status="complete", author__kind="bot")
        assert whole["text"] == "You can return it within 30 days [1]."
        assert [one["number"] for one in whole["citations"]] == [1]
        assert whole["citations"][0].keys() == {"number", "title", "heading", "text"}
        resumed = events.last_id
    assert "sources" not in whole
    async with visitor.events(resumed) as events:
        await events.until("case", status="bot")
    again = await visit(here.live.http, inbox, token=visitor.token)
    assert again.token == visitor.token
    assert [message["text"] for message in again.session["messages"]] == [
        "How long may I return a parcel?",
        whole["text"],
    ]
    text = (await visitor.get("transcript")).text
    assert "Sie, " in text
    assert "(Europe/Vienna)" in text
    assert "[1] Returns" in text


async def test_no_word_of_the_bot_comes_after_a_person(here: Desk, inbox: dict[str, Any]) -> None:
    engine, never = here.live.engine, asyncio.Event()
    engine.say(ANSWER)
    engine.say("You can ", "not return it.", gates={1: never})
    visitor = await visit(here.live.http, inbox)
    async with visitor.events() as events:
        await visitor.write("May I return it?")
        await events.until("message", author__kind="bot", text="You can ")
        case = (await case_of(here, inbox))["case"]
        answer = await here.clients["ben"].post(
            f"/api/cases/{case['id']}/messages", json={"text": "Yes, you can.", "client_id": "a1"}
        )
        assert answer.status_code < 300, answer.text
        told = await events.until("message", author__kind="agent")
        assert told["author"]["name"]
    await eventually(lambda: engine.running == 0)
    never.set()
    messages = (await case_of(here, inbox))["messages"]
    assert [(one["author"]["kind"], one["status"]) for one in messages] == [
        ("contact", "complete"),
        ("bot", "stopped"),
        ("agent", "complete"),
    ]
    assert "not return" not in str(messages)
    assert engine.aborted == 1
    await visitor.write("Thank you!")
    assert (await case_of(here, inbox))["case"]["status"] == "open"
    assert len(engine.calls) == 2, "the bot stays out of it"


async def test_asking_for_a_person_always_works(here: Desk, inbox: dict[str, Any]) -> None:
    visitor = await visit(here.live.http, inbox, language="de")
    answer = await visitor.post("hand-off")
    assert answer.status_code == 200, answer.text
    assert answer.json()["case"]["status"] == "open"
    assert (await visitor.post("hand-off")).json()["case"]["status"] == "open"
    texts = [one["text"] for one in (await case_of(here, inbox))["messages"]]
    assert texts[0] == "Mit einem Menschen sprechen"
    assert len([text for text in texts if "Jemand aus unserem Team" in text]) == 1


async def test_asking_for_a_person_counts_as_a_message_where_it_begins_a_case(
    here: Desk, inbox: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.widget.MESSAGES_BY_ADDRESS", (RateLimit(2, 60, "address message"),))
    first, second, third = [await visit(here.live.http, inbox) for _ in range(3)]
    for visitor in (first, second, first):  # the last one has a case
        assert (await visitor.post("hand-off")).status_code == 200
    assert (await first.get("transcript")).text.count("Talk to a person") == 1
    refused = await third.post("hand-off")
    assert refused.status_code == 429
    assert "too many messages" in refused.json()["error"]["message"]
    assert "Talk to a person" not in (await third.get("transcript")).text


async def test_asking_twice_at_once_begins_one_case(here: Desk, inbox: dict[str, Any]) -> None:
    visitor = await visit(here.live.http, inbox)
    await asyncio.gather(*(visitor.post("hand-off") for _ in range(3)))
    texts = [one["text"] for one in (await case_of(here, inbox))["messages"]]
    assert texts[0] == "Talk to a person"
    assert len(texts) == len(set(texts)) == 2


async def test_a_message_is_stored_once_for_its_client_id(here: Desk, inbox: dict[str, Any]) -> None:
    here.live.engine.say(decision("ask", "small_talk"))
    visitor = await visit(here.live.http, inbox)
    both = await asyncio.gather(visitor.write("Hello", "same"), visitor.write("Hello", "same"))
    assert both[0]["message"]["id"] == both[1]["message"]["id"]
    other = await visitor.post("messages", {"text": "Another", "client_id": "same"})
    assert other.status_code == 409


async def test_tokens_that_are_not_the_visitors_begin_anew_and_open_nothing(here: Desk, inbox: dict[str, Any]) -> None:
    here.live.engine.say(decision("hand_off", "missing_knowledge"))
    visitor = await visit(here.live.http, inbox)
    await visitor.write("My order number is 4711.")
    second = await make_inbox(here, name="Blog", bot=False)
    foreign = await visit(here.live.http, second, token=visitor.token)
    assert foreign.token != visitor.token
    assert foreign.session["messages"] == []
    assert (await visit(here.live.http, inbox, token="dmv_" + "x" * 43)).session["case"] is None
    assert (await visit(here.live.http, inbox, token="\u2603" * 20)).session["case"] is None
    for token in ("", "x", "dmv_" + "x" * 43, visitor.token + "x", here.clients["ben"].cookies.get("deskmate") or "c"):
        stranger = Visitor(here.live.http, token or "none", {})
        answers = [
            await stranger.get("transcript"),
            await stranger.get("events"),
            await stranger.post("messages", {"text": "hi", "client_id": "x"}),
            await stranger.post("hand-off"),
            await stranger.post("rating", {"score": 5}),
        ]
        assert {answer.status_code for answer in answers} == {401}
        assert {answer.json()["error"]["code"] for answer in answers} == {"unknown_visitor"}
    other = await visit(here.live.http, inbox)
    assert "4711" not in (await other.get("transcript")).text
    # What opens the desk opens no talk, and what opens a talk opens nothing of the desk.
    assert (await here.clients["ada"].get("/api/widget/transcript")).status_code == 401
    for path in ("/api/cases", "/api/inboxes", "/api/conversations", "/api/account", "/api/kb/collections"):
        assert (await here.live.http.get(path, headers=visitor.headers)).status_code == 401


async def test_limits_hit_the_flooder_alone(here: Desk, inbox: dict[str, Any]) -> None:
    for _ in range(2):
        here.live.engine.say(decision("hand_off", "missing_knowledge"))
    flooder = await visit(here.live.http, inbox)
    statuses = [
        (await flooder.post("messages", {"text": "x", "client_id": f"f{number}"})).status_code for number in range(14)
    ]
    assert statuses[:10] == [200] * 10
    assert statuses[10:] == [429] * 4
    other = await visit(here.live.http, inbox)
    assert (await other.write("Hello?"))["message"]["text"] == "Hello?"
    large = await flooder.post("messages", {"text": "x" * 8001, "client_id": "large"})
    assert large.status_code == 422
    assert "at most 8,000" in large.json()["error"]["message"]
    huge = await flooder.http.post(
        "/api/widget/messages",
        content=b'{"text": "' + b"x" * 10_000_000 + b'"}',
        headers=flooder.headers | {"Content-Type": "application/json"},
    )
    assert huge.status_code == 413


async def test_another_website_cannot_write(here: Desk, inbox: dict[str, Any]) -> None:
    visitor = await visit(here.live.http, inbox)
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answers = [
            await here.live.http.post(f"/api/widget/{inbox['token']}/sessions", json={}, headers=headers),
            await here.live.http.post(
                "/api/widget/messages", json={"text": "x", "client_id": "x"}, headers=visitor.headers | headers
            ),
            await here.live.http.get("/api/widget/transcript", headers=visitor.headers | headers),
        ]
        assert {answer.status_code for answer in answers} == {403}


async def test_rating_contact_and_wrong_values(here: Desk, inbox: dict[str, Any]) -> None:
    here.live.engine.say(decision("ask", "small_talk"))
    visitor = await visit(here.live.http, inbox)
    assert (await visitor.post("rating", {"score": 5})).status_code == 404
    written = await visitor.write("Hello")
    assert written["case"]["rating"] is False
    assert (await visitor.post("rating", {"score": 4, "comment": "good"})).json() == {"score": 4, "comment": "good"}
    assert (await visitor.post("rating", {"score": 0})).status_code == 422
    put = here.live.http.put
    changed = await put("/api/widget/contact", json={"name": "Ada", "email": "a@b.example"}, headers=visitor.headers)
    assert changed.json() == {"name": "Ada", "email": "a@b.example", "verified": False}
    for wrong in ("none", "a b@c.d", "<x>@y.z", "a@b.example, c@d.example"):
        refused = await put("/api/widget/contact", json={"email": wrong}, headers=visitor.headers)
        assert refused.status_code == 422
    assert (await visitor.post("messages", {"text": "  ", "client_id": "e"})).status_code == 422
    assert (await visitor.post("messages", {"text": "hi"})).status_code == 422
    missing = await here.live.http.post("/api/widget/none/sessions", json={})
    assert missing.status_code == 404


async def test_a_website_signs_who_its_customer_is(here: Desk, inbox: dict[str, Any]) -> None:
    ada = here.clients["ada"]
    key = (await ada.post(f"/api/inboxes/{inbox['id']}/secret")).json()["secret"]
    for _ in range(3):
        here.live.engine.say(decision("hand_off", "missing_knowledge"))

    def signed(by: str = key, **changed: Any) -> str:
        now = int(time.time())
        claims = {"aud": inbox["token"], "iat": now, "exp": now + 600, "sub": "customer 7", "name": "Ada"}
        return jwt.encode({"alg": "HS256"}, claims | changed, OctKey.import_key(by))

    browser = await visit(here.live.http, inbox)
    await browser.write("Where is my order?")
    known = await visit(here.live.http, inbox, token=browser.token, identity=signed())
    assert known.session["contact"] == {"name": "Ada", "email": None, "verified": True}
    assert known.session["messages"][0]["text"] == "Where is my order?"
    # Another person may have copied the token that was there before the customer signed in.
    assert known.token != browser.token
    assert (await browser.get("transcript")).status_code == 401
    assert (await visit(here.live.http, inbox, token=known.token, identity=signed())).token == known.token
    elsewhere = await visit(here.live.http, inbox, identity=signed())
    assert elsewhere.session["messages"][0]["text"] == "Where is my order?"
    # The next customer on the same browser reads nothing of the one before.
    next_one = await visit(here.live.http, inbox, token=known.token, identity=signed(sub="customer 8"))
    assert next_one.session["messages"] == []
    for forged in (signed("x" * 43), signed(aud="another"), signed(exp=int(time.time()) - 1), "a.b.c", "x" * 5000):
        refused = await visit(here.live.http, inbox, identity=forged)
        assert refused.session["contact"]["verified"] is False
        assert refused.session["messages"] == []
        assert "identity token was refused" in refused.session["identity_error"]
    second = await make_inbox(here, name="Blog", bot=False)
    replayed = await visit(here.live.http, second, identity=signed())
    assert replayed.session["contact"]["verified"] is False
    before, key = key, (await ada.post(f"/api/inboxes/{inbox['id']}/secret")).json()["secret"]
    for holds in (before, key):
        assert (await visit(here.live.http, inbox, identity=signed(holds))).session["contact"]["verified"] is True
    put = await here.live.http.put("/api/widget/contact", json={"name": "Eve"}, headers=elsewhere.headers)
    assert put.status_code == 409


async def test_a_stream_that_was_lost_goes_on_without_a_gap(here: Desk, inbox: dict[str, Any]) -> None:
    visitor = await visit(here.live.http, inbox)
    here.live.engine.say(decision("hand_off", "asked_for_person"))
    async with visitor.events() as events:
        await visitor.write("A person, please")
        await events.until("message", author__kind="system")
        last = events.last_id
    case = (await case_of(here, inbox))["case"]
    for number in range(3):
        answer = {"text": f"Answer {number}", "client_id": f"a{number}"}
        await here.clients["ben"].post(f"/api/cases/{case['id']}/messages", json=answer)
    await here.clients["ben"].post(f"/api/cases/{case['id']}/notes", json={"text": "A rude one", "client_id": "n"})
    async with visitor.events(last) as events:
        await events.until("message", text="Answer 2")
        texts = [data["text"] for name, data in events.seen if name == "message"]
        assert texts == ["Answer 0", "Answer 1", "Answer 2"]
        resolved = await here.clients["ben"].post(f"/api/cases/{case['id']}/resolve", json={})
        assert resolved.status_code < 300
        assert (await events.until("case", status="resolved"))["rating"] is True
    async with visitor.events("garbage:1:x") as events:
        await events.until("message", text="Answer 2")
        assert "rude" not in str(events.seen)
    assert "rude" not in (await visitor.get("transcript")).text


PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


async def send_file(visitor: Visitor, name: str, content: bytes) -> httpx.Response:
    files = {"file": (name, content, "image/png")}  # the client's word for it, which proves nothing
    return await visitor.http.post("/api/widget/attachments", files=files, headers=visitor.headers)


async def test_files_are_sent_with_a_message_and_read_by_both_sides_alone(here: Desk, inbox: dict[str, Any]) -> None:
    visitor, other = await visit(here.live.http, inbox), await visit(here.live.http, inbox)
    assert visitor.session["attachments"] is True
    file = (await send_file(visitor, "../../kettle.png", PNG)).json()
    assert (file["name"], file["type"], file["size"]) == ("kettle.png", "image/png", len(PNG))
    sent = await visitor.post("messages", {"text": "", "client_id": "f1", "attachments": [file["id"]]})
    assert sent.status_code == 200, sent.text
    assert [one["id"] for one in sent.json()["message"]["attachments"]] == [file["id"]]
    shown = await visitor.get(f"attachments/{file['id']}")
    assert (shown.content, shown.headers["content-type"]) == (PNG, "image/png")
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    whole = await case_of(here, inbox)
    path = f"/api/cases/{whole['case']['id']}/attachments/{file['id']}"
    assert (await here.clients["ben"].get(path)).content == PNG
    assert (await other.get(f"attachments/{file['id']}")).status_code == 404
    # Neither another visitor nor another message takes it.
    for one, client_id in ((other, "f2"), (visitor, "f3")):
        again = await one.post("messages", {"text": "Mine", "client_id": client_id, "attachments": [file["id"]]})
        assert again.status_code == 422, again.text
    assert "Mine" not in [one["text"] for one in (await case_of(here, inbox))["messages"]]


async def test_a_script_that_calls_itself_a_picture_is_a_text_to_save(here: Desk, inbox: dict[str, Any]) -> None:
    visitor = await visit(here.live.http, inbox)
    file = (await send_file(visitor, "evil.png", b"<script>alert(1)</script>")).json()
    assert file["type"] == "text/plain"
    saved = await visitor.get(f"attachments/{file['id']}")
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment")
    assert saved.headers["x-content-type-options"] == "nosniff"


async def test_files_that_cannot_be_sent_and_those_that_are_too_many(here: Desk, inbox: dict[str, Any]) -> None:
    visitor = await visit(here.live.http, inbox)
    for name, content, status in (
        ("empty.txt", b"", 422),
        ("program.exe", b"MZ\x00\x01\x02", 422),
        ("large.png", PNG + bytes(MAX_ATTACHMENT_BYTES), 413),
    ):
        refused = await send_file(visitor, name, content)
        assert refused.status_code == status, refused.text
        assert len(refused.json()["error"]["message"]) > 10
    assert (await visitor.http.post("/api/widget/attachments", files={"file": PNG})).status_code == 401
    added = await asyncio.gather(*(send_file(visitor, "note.txt", b"Hello") for _ in range(MAX_UNSENT + 5)))
    assert [one.status_code for one in added].count(201) == MAX_UNSENT
    assert {one.status_code for one in added} == {201, 409}


async def test_files_of_one_address_are_limited_however_many_visitors_it_makes(
    here: Desk, inbox: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.widget.FILES_BY_ADDRESS", (RateLimit(3, 3600, "address file"),))
    sent = [await send_file(await visit(here.live.http, inbox), "note.txt", b"Hello") for _ in range(4)]
    assert [one.status_code for one in sent] == [201, 201, 201, 429]


async def test_a_stream_ends_when_its_token_does(
    here: Desk, inbox: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.widget.events.LOOK_SECONDS", 0.1)
    visitor = await visit(here.live.http, inbox)
    async with visitor.events() as events:
        widget = here.services.widget
        assert widget is not None
        found = await widget.find_visitor(visitor.token)
        assert found is not None
        await here.services.cases.visitors.identify(found.token_hash, "a new token", external_id="customer 9")
        async with asyncio.timeout(60):
            async for _ in events.lines:
                pass


async def test_a_talk_of_many_messages_is_read_by_its_newest_ones(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.cases.contact_cases.MAX_MESSAGES", 2)
    monkeypatch.setattr("app.api.widget.routes.TRANSCRIPT_MESSAGES", 3)
    quiet = await make_inbox(here, bot=False)
    visitor = await visit(here.live.http, quiet)
    for number in range(5):
        await visitor.write(f"Message {number}")
    again = await visit(here.live.http, quiet, token=visitor.token)
    assert [one["text"] for one in again.session["messages"]] == ["Message 3", "Message 4"]
    async with visitor.events() as events:
        await events.until("message", text="Message 4")
        assert [data["text"] for name, data in events.seen if name == "message"] == ["Message 3", "Message 4"]
    transcript = (await visitor.get("transcript")).text
    assert "Message 2" in transcript
    assert "Message 1" not in transcript


async def test_streams_of_one_address_are_limited_however_many_visitors_it_makes(
    here: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.widget.MAX_STREAMS_PER_ADDRESS", 1, raising=False)
    quiet = await make_inbox(here, bot=False)
    first, second = await visit(here.live.http, quiet), await visit(here.live.http, quiet)
    await first.write("Hello?")
    async with first.events() as events:
        await events.until("case")
        async with here.live.http.stream("GET", "/api/widget/events", headers=second.headers) as answer:
            assert answer.status_code == 429
