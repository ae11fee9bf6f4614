"""The conversation list and the message box as a Python developer meets them."""

from __future__ import annotations

from typing import Any

import pytest

from app.ui.components import Composer, Conversations


def test_the_text_is_the_value_of_the_box() -> None:
    composer = Composer("Hi")
    assert composer.get_config()["value"] == "Hi"
    assert composer.preprocess("Hi") == composer.postprocess("Hi") == "Hi"
    assert composer.preprocess(None) == composer.postprocess(None) == ""
    assert {"submit", "stop", "input", "canned_open", "canned_fill"} <= {str(event) for event in Composer.EVENTS}


@pytest.mark.parametrize(
    ("props", "problem"),
    [
        ({"value": ["Hi"]}, "text of the message box must be a string"),
        ({"max_length": 0}, "max_length must be at least 1, not 0"),
        ({"canned": "hello"}, "list of canned replies: Input should be a valid list"),
        ({"canned": [{"title": "no name"}]}, "Canned reply 0, name: Field required"),
        ({"canned": [{"name": "a"}, {"name": "a"}]}, "'a' occurs more than once"),
    ],
)
def test_a_wrong_prop_of_the_box_is_named(props: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Composer(**props)


def test_conversations_are_the_value_of_the_list() -> None:
    summary: Any = {"id": "1", "title": "Hello", "mine": 3}
    conversations = Conversations([summary])
    assert conversations.get_config()["value"] == [summary]
    assert conversations.preprocess([summary]) == [summary]
    assert conversations.postprocess(None) == conversations.preprocess("") == []
    data_events = {"new", "select", "search", "rename", "pin", "archive", "tag", "delete", "export", "upload", "more"}
    data_events |= {"summarise", "article"}
    assert data_events <= {str(event) for event in Conversations.EVENTS}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("Hello", "value of a conversation list: Input should be a valid list"),
        ([{"id": "1", "title": "a"}, {"id": "2"}], "Conversation 1, title: Field required"),
        ([{"id": 1, "title": "a"}], "Conversation 0, id: Input should be a valid string"),
        ([{"id": "1", "title": "a", "tags": "urgent"}], "Conversation 0, tags"),
        ([{"id": "1", "title": "a"}, {"id": "1", "title": "b"}], "'1' occurs more than once"),
    ],
)
def test_a_wrong_list_is_refused_with_its_place(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Conversations(value)
    with pytest.raises(ValueError, match=problem):
        Conversations().postprocess(value)


@pytest.mark.parametrize(
    ("props", "problem"),
    [
        ({"actions": ["rename", "burn"]}, "Unknown actions: burn"),
        ({"parts": ["desk"]}, "Unknown parts: desk"),
        ({"filter": "server"}, "filter must be"),
    ],
)
def test_a_wrong_prop_of_the_list_is_named(props: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Conversations(**props)
