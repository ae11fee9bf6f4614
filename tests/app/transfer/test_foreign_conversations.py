"""What other programs export, brought into our shape: a message, its reply, and so on, every branch of them."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.broken_conversation import BrokenConversation
from app.domain.conversation_document import ConversationDocument
from app.domain.document_tree import positions
from app.domain.views import Role
from app.errors import BrokenFile
from app.transfer.foreign import ForeignConversation, ForeignMessage, converted, moment
from app.transfer.reading import read_conversations

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def read(value: Any) -> list[ConversationDocument]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_conversations(io.BytesIO(data), "The file", max_bytes=2**20, now=NOW)


def tree(conversation: ConversationDocument) -> list[Any]:
    """Messages as nested lists: the text, then what follows it, versions in their order."""
    positions(conversation)
    following: dict[str | None, list[Any]] = {}
    for message in sorted(conversation.messages, key=lambda message: message.id):
        following.setdefault(message.parent_id, []).append(message)

    def below(id: str | None) -> list[Any]:
        return [[message.content, *below(message.id)] for message in following.get(id, ())]

    return below(None)


def tip(conversation: ConversationDocument) -> str:
    (content,) = (message.content for message in conversation.messages if message.id == conversation.tip)
    return content


def node(id: str, parent: str | None, role: str | None = None, text: str = "", **message: Any) -> dict[str, Any]:
    message = {
        "id": id,
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": 1700000000.25,
        "content": {"content_type": "text", "parts": [text]},
        "status": "finished_successfully",
        "end_turn": True,
        "weight": 1.0,
        "metadata": {},
        "recipient": "all",
        **message,
    }
    return {"id": id, "parent": parent, "children": [], "message": message if role else None}


def chatgpt(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    by_id = {node["id"]: node for node in nodes}
    for one in nodes:
        if one["parent"] in by_id:
            by_id[one["parent"]]["children"].append(one["id"])
    return {
        "title": "Talk",
        "create_time": 1700000000.0,
        "update_time": 1700000100.5,
        "mapping": by_id,
        "moderation_results": [],
        "current_node": nodes[-1]["id"],
        "conversation_id": "68a0-1",
        "is_archived": True,
        **fields,
    }


def test_chatgpt() -> None:
    hidden = {"is_visually_hidden_from_conversation": True}
    (conversation,) = read(
        [
            chatgpt(
                node("client-created-root", None),
                node("s", "client-created-root", "system", metadata=hidden),
                node("u0", "s", "user", "about me", metadata={"is_user_system_message": True}),
                node(
                    "q",
                    "u0",
                    "user",
                    "What is this?",
                    content={
                        "content_type": "multimodal_text",
                        "parts": [
                            {"content_type": "image_asset_pointer", "asset_pointer": "sediment://x"},
                            "What is this?",
                        ],
                    },
                ),
                node("a1", "q", "assistant", "A cat.", metadata={"model_slug": "gpt-4o"}),
                node("t", "q", "assistant", content={"content_type": "thoughts", "thoughts": []}),
                node("c", "t", "assistant", recipient="python", content={"content_type": "code", "text": "1+1"}),
                node("o", "c", "tool", content={"content_type": "execution_output", "text": "2"}),
                node("a2", "o", "assistant", "A dog.", status="in_progress"),
                node("q2", "a1", "user", "Sure?"),
                node(
                    "a3",
                    "q2",
                    "assistant",
                    content={"content_type": "code", "language": "python", "text": "print(1)"},
                ),
                current_node="o",
            )
        ]
    )
    assert tree(conversation) == [
        ["[image]\nWhat is this?", ["A cat.", ["Sure?", ["```python\nprint(1)\n```"]]], ["A dog."]],
    ]
    assert conversation.title == "Talk"
    assert conversation.title_by == "person"
    assert conversation.imported_from == "chatgpt:68a0-1"
    assert (conversation.archived, conversation.pinned) == (True, False)
    assert conversation.created_at == datetime.fromtimestamp(1700000000, UTC)
    assert conversation.updated_at == datetime.fromtimestamp(1700000100.5, UTC)
    by_text = {message.content: message for message in conversation.messages}
    assert by_text["A cat."].created_at == datetime.fromtimestamp(1700000000.25, UTC)
    turn = by_text["A cat."].turn
    assert turn is not None
    assert turn.model == "gpt-4o"
    assert by_text["A dog."].status == "stopped"
    # "o" is left out, and what it followed was the question: what comes next must follow a reply.
    assert tip(conversation) == "A dog."


CITED = "\ue200cite\ue202turn0search1\ue201"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"It rains {CITED}.", "It rains."),
        (f"It rains {CITED} a lot.\n\n{CITED}", "It rains a lot.\n\n"),
        ("One.\ue200cite\ue202turn0search1\ue202turn12news30\ue201 Two.", "One. Two."),
        ("A \ue203fact\ue204\ue200filecite\ue202turn0file0\ue202L1-L9\ue201!", "A fact!"),
        ('In \ue200entity\ue202["city","Paris","capital"]\ue201 now', "In Paris now"),
        ("See \ue200url\ue202Weather today\ue202turn0search3\ue201.", "See Weather today."),
        ('\ue200image_group\ue202{"query":["cats"]}\ue201Cats.', "Cats."),
        ("It was cut off \ue200cite\ue202turn0sea", "It was cut off"),
        ("It rains citeturn0search1turn0news2.", "It rains."),
        ("It rains\u30104\u2020source\u3011.", "It rains."),
        ("\ue200entity\ue202[1\ue201x\ue201", "x"),
        ("I cite turn0 and 【this】 and \uf8ff.", "I cite turn0 and 【this】 and \uf8ff."),
    ],
)
def test_chatgpt_citation_marks_are_taken_out(text: str, shown: str) -> None:
    (conversation,) = read([chatgpt(node("q", None, "user", text), node("a", "q", "assistant", text))])
    question, reply = conversation.messages
    assert reply.content == shown
    assert question.content == text  # a person's own words stay as they are


def test_chatgpt_citations_become_the_links_that_the_export_holds() -> None:
    alt = "([Weather](https://weather.example/today))"
    references = [{"matched_text": CITED, "alt": alt}, {"matched_text": " ", "alt": "x"}, {"matched_text": 5}, "?"]
    reply = node("a", "q", "assistant", f"It rains {CITED}.", metadata={"content_references": references})
    (conversation,) = read([chatgpt(node("q", None, "user", "Rain?"), reply)])
    assert conversation.messages[-1].content == f"It rains {alt}."


def test_chatgpt_without_what_is_not_needed() -> None:
    (conversation,) = read(
        [
            {
                "mapping": {
                    "a": {"message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["x"]}}}
                }
            }
        ]
    )
    assert tree(conversation) == [["x", [""]]]
    assert conversation.title == "x"
    assert conversation.created_at == NOW
    assert conversation.imported_from is not None
    assert conversation.imported_from.startswith("chatgpt:sha256-")


def test_one_reply_in_several_parts_is_one_message() -> None:
    (conversation,) = read(
        [
            chatgpt(
                node("q", None, "user", "q"),
                node("a1", "q", "assistant", "first"),
                node("t", "a1", "tool", "ran"),
                node("a2", "t", "assistant", "second"),
                node("q2", "a2", "user", "q2"),
                node("q3", "q2", "user", "q3"),
                current_node="a1",
            )
        ]
    )
    assert tree(conversation) == [["q", ["first\n\nsecond", ["q2\n\nq3", [""]]]]]
    assert tip(conversation) == "first\n\nsecond"
    assert conversation.messages[-1].status == "stopped"


def webui_message(id: str, parent: str | None, role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"id": id, "parentId": parent, "childrenIds": [], "role": role, "content": content, **fields}


def webui(*messages: dict[str, Any], current: str | None = None, **fields: Any) -> dict[str, Any]:
    by_id = {message["id"]: message for message in messages}
    for message in messages:
        if message["parentId"] in by_id:
            by_id[message["parentId"]]["childrenIds"].append(message["id"])
    return {
        "id": "chat-1",
        "user_id": "u",
        "title": "Chat",
        "chat": {"title": "Chat", "models": ["llama"], "history": {"messages": by_id, "currentId": current}},
        "created_at": 1700000000,
        "updated_at": 1700000050,
        "pinned": True,
        "meta": {"tags": ["work", "long " * 20]},
        **fields,
    }


def test_open_webui() -> None:
    (conversation,) = read(
        [
            webui(
                webui_message("1", None, "user", "hi", timestamp=1700000001),
                webui_message("2", "1", "assistant", "one", model="llama3:8b", timestamp=1700000002123),
                webui_message("3", "1", "assistant", "", error={"content": "Ran out of memory."}, model="phi"),
                webui_message(
                    "4", "2", "user", [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]
                ),
                webui_message("5", "4", "assistant", "half", done=False),
                current="5",
            )
        ]
    )
    assert tree(conversation) == [["hi", ["one", ["see\n[image]", ["half"]]], [""]]]
    assert conversation.imported_from == "open-webui:chat-1"
    assert conversation.pinned
    assert conversation.tags == sorted(["work", ("long " * 10).strip()])
    assert tip(conversation) == "half"
    by_text = {message.content: message for message in conversation.messages}
    assert by_text["hi"].created_at == datetime.fromtimestamp(1700000001, UTC)
    assert by_text["one"].created_at == datetime.fromtimestamp(1700000002.123, UTC)
    assert by_text["half"].status == "stopped"
    failed = by_text[""]
    assert failed.status == "error"
    assert failed.turn is not None
    assert (failed.turn.model, failed.turn.error) == ("phi", "Ran out of memory.")


@pytest.mark.parametrize("wrapped", [True, False])
def test_open_webui_of_old(wrapped: bool) -> None:
    chat = {
        "title": "Old",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
        ],
        "timestamp": 1700000000000,
    }
    (conversation,) = read([{"title": "Old", "chat": chat} if wrapped else chat])
    assert tree(conversation) == [["a", ["b"]]]
    assert conversation.settings.system_prompt == "Be brief."
    assert conversation.created_at == datetime.fromtimestamp(1700000000, UTC)
    assert conversation.title == "Old"


def test_sharegpt() -> None:
    turns = [
        {"from": "system", "value": "You are kind."},
        {"from": "gpt", "value": "Welcome."},
        {"from": "human", "value": "a\u0000b"},
        {"from": "function_call", "value": "{}"},
        {"from": "gpt", "value": "\ud800"},
    ]
    lines = [{"id": "identity_0", "conversations": turns}, {"id": "identity_0", "conversations": turns[:3]}]
    expected = [
        [["", ["Welcome.", ["ab", ["\ufffd"]]]]],
        [["", ["Welcome.", ["ab", [""]]]]],
    ]
    for data in (
        json.dumps(lines).encode(),
        "\n\n".join(map(json.dumps, lines)).encode(),
        json.dumps(lines).encode("utf-16"),
    ):
        conversations = read(data)
        assert [tree(conversation) for conversation in conversations] == expected
        assert conversations[0].settings.system_prompt == "You are kind."
        assert conversations[0].title == "Welcome."
        # The id is the same in every data set; what was said is not.
        assert conversations[0].imported_from != conversations[1].imported_from
        assert [one.imported_from for one in read(data)] == [one.imported_from for one in conversations]


def test_a_single_conversation_needs_no_list() -> None:
    assert tree(read(webui(webui_message("1", None, "user", "hi")))[0]) == [["hi", [""]]]
    assert tree(read(chatgpt(node("q", None, "user", "q")))[0]) == [["q", [""]]]


_said = st.lists(
    st.tuples(
        st.integers(0, 100),
        st.sampled_from([Role.USER, Role.ASSISTANT, None]),
        st.sampled_from(["a", "b", "c", " ", ""]),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(_said, st.integers(0, 12))
def test_no_way_through_a_conversation_is_lost(shape: list[tuple[int, Role | None, str]], shown: int) -> None:
    messages: list[ForeignMessage] = []
    for index, (parent, role, text) in enumerate(shape):
        key = str(parent % (index + 1) - 1)
        messages.append(
            ForeignMessage(
                key=str(index),
                parent=None if key == "-1" else key,
                role=role,
                text=text + str(index) * bool(text.strip()),
            )
        )
    conversation = converted(ForeignConversation(program="x", id="1", messages=messages, tip=str(shown)), NOW)
    depths = positions(conversation)
    by_id = {message.id: message for message in conversation.messages}
    roles = [Role.USER, Role.ASSISTANT]
    assert all(message.role is roles[depths[message.id] % 2] for message in conversation.messages)
    assert by_id[conversation.tip].role is Role.ASSISTANT if conversation.tip else not by_id

    by_key = {one.key: one for one in messages}
    kept = {one.key for one in messages if one.role is not None and one.text.strip()}

    def before(key: str | None) -> list[str]:
        return [] if key is None else before(by_key[key].parent) + ([by_key[key].text] if key in kept else [])

    goes_on = {text for key in kept for text in before(by_key[key].parent)}
    ways_there = sorted("\n\n".join(before(key)) for key in kept if by_key[key].text not in goes_on)

    def up_to(id: str | None) -> list[str]:
        return [] if id is None else up_to(by_id[id].parent_id) + ([by_id[id].content] if by_id[id].content else [])

    parents = {message.parent_id for message in conversation.messages}
    ways_here = sorted("\n\n".join(up_to(id)) for id in by_id if id not in parents)
    assert ways_here == ways_there


def test_forks_do_not_make_text_grow_without_end() -> None:
    messages = [ForeignMessage(key="0", parent=None, role=Role.USER, text="x" * 1000)]
    messages += [ForeignMessage(key=str(n), parent="0", role=Role.USER, text="y") for n in range(1, 100)]
    with pytest.raises(BrokenConversation, match="fork too often"):
        converted(ForeignConversation(program="x", id="1", messages=messages), NOW)


def test_a_long_chain_is_no_deep_recursion() -> None:
    messages = [
        ForeignMessage(
            key=str(n), parent=str(n - 1) if n else None, role=(Role.USER, Role.ASSISTANT)[n // 2 % 2], text="x"
        )
        for n in range(20_000)
    ]
    conversation = converted(ForeignConversation(program="x", id="1", messages=messages), NOW)
    assert len(positions(conversation)) == 10_000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1700000000, 1700000000.0),
        (1700000000.5, 1700000000.5),
        (1700000000500, 1700000000.5),
        (1700000000500000, 1700000000.5),
        (1700000000500000000, 1700000000.5),
        ("1700000000.5", 1700000000.5),
        ("2023-11-14T22:13:20Z", 1700000000.0),
        ("2023-11-14T23:13:20+01:00", 1700000000.0),
        ("2023-11-14T22:13:20", 1700000000.0),
    ],
)
def test_moments(value: object, seconds: float) -> None:
    assert moment(value) == datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize("value", [None, True, "soon", "", 0, -5, 1e999, float("nan"), 10**400, [], "9" * 30])
def test_what_is_no_moment(value: object) -> None:
    assert moment(value) is None


SAMPLES = [
    [
        chatgpt(
            node("q", None, "user", "q"),
            node("a", "q", "assistant", "a", metadata={"model_slug": "gpt-4o"}),
            node("c", "a", "assistant", content={"content_type": "code", "language": "py", "text": "1"}),
            node("p", "c", "user", content={"content_type": "multimodal_text", "parts": [{"content_type": "x"}, "y"]}),
        )
    ],
    [
        webui(
            webui_message("1", None, "user", "hi", timestamp=1700000001),
            webui_message("2", "1", "assistant", [{"type": "text", "text": "x"}], error={"content": "no"}, done=True),
            chat_params={},
        )
    ],
    [
        {
            "title": "Old",
            "chat": {
                "title": "Old",
                "tags": ["t"],
                "params": {"system": "s"},
                "messages": [{"role": "user", "content": "x"}],
            },
        }
    ],
    [{"id": "1", "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}],
    {
        "format": "deskmate.conversations",
        "version": 1,
        "conversations": [
            {
                "id": "00000000-0000-4000-8000-000000000001",
                "title": "T",
                "tags": ["t"],
                "settings": {"temperature": 0.5, "stop": ["x"]},
                "created_at": "2026-05-01T12:00:00Z",
                "updated_at": "2026-05-01T12:00:00Z",
                "messages": [
                    {
                        "id": "00000000-0000-4000-8000-000000000002",
                        "role": "user",
                        "content": "x",
                        "created_at": "2026-05-01T12:00:00Z",
                    }
                ],
            }
        ],
    },
]


_values = st.sampled_from(
    ["null", "true", "5", "-1", "1e30", '""', '"x"', '"2026-05-01"', "[]", "[1]", '["x"]', "[null]", "{}", '{"a": 1}']
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_value_anywhere_breaks_more_than_its_file(data: st.DataObject) -> None:
    """Each field of each kind of file may hold anything: it is read, or refused with a sentence."""
    value = json.loads(json.dumps(data.draw(st.sampled_from(SAMPLES))))
    for _ in range(data.draw(st.integers(1, 2))):
        place: Any = value
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 5)) == 0:
                break
            place = inner
        place[key] = json.loads(data.draw(_values))
    with suppress(BrokenFile):
        for conversation in read(value):
            positions(conversation)
            ConversationDocument.model_validate_json(conversation.model_dump_json())
