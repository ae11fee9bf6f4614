"""The list of conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from gradio.events import Events

from app.ui.components.component import FileComponent, quiet_event
from app.ui.components.conversations.summaries import SUMMARIES_SCHEMA, Summary, validate_summaries
from app.ui.components.values import check_names


class Conversations(FileComponent):
    """The list of conversations, with search, tags, archive, export and import.

    The value is a list of conversations, ``{"id": "1", "title": "Hello"}``, with optional keys (``Summary`` in
    ``app/ui/components/conversations/summaries.py``) for the time of the last message, marks, tags and a found text.
    They are shown in the given order, under headings by day, and ``current`` is marked. The list changes nothing by
    itself: a listener of ``rename``, ``delete`` and so on returns the changed value.
    """

    #: What a user can do with a conversation; each raises the event of its name.
    ACTIONS: ClassVar = ("pin", "rename", "tag", "archive", "move", "summarise", "article", "export", "delete")
    #: What the component shows beside the rows. "tags", "folders" and "archived" choose which conversations
    #: are listed; a script of the page sets the folders.
    PARTS: ClassVar = ("new", "search", "tags", "archived", "folders", "select", "export", "import")

    EVENTS: ClassVar = [
        Events.change,
        quiet_event("new", "A user wants a new conversation. No data."),
        quiet_event(
            "select",
            "A user opened a conversation, which is marked then. Data: `id`, `message_id` (the message that a search "
            "found, or None).",
        ),
        quiet_event(
            "search",
            "A user changed which conversations are listed. Data: `query` (a text, may be empty), `tag` (a string or "
            'None), `archived` (a bool). With `filter="listener"`, a listener returns the value to show.',
        ),
        quiet_event("rename", "A user gave a conversation another title. Data: `id`, `title`."),
        quiet_event("pin", "A user pinned a conversation, or took it off. Data: `id`, `pinned` (a bool)."),
        quiet_event(
            "archive", "A user archived a conversation, or took it out again. Data: `id`, `archived` (a bool)."
        ),
        quiet_event("tag", "A user changed the tags of a conversation. Data: `id`, `tags` (a list of strings)."),
        quiet_event(
            "move",
            "A user moved conversations. Data: `ids`, `folder` (`{id}`, None: no folder, or `{name}`: a new one).",
        ),
        quiet_event("folder_create", "A user wants a new folder. Data: `name`."),
        quiet_event("folder_rename", "A user gave a folder another name. Data: `id`, `name`."),
        quiet_event("folder_delete", "A user deleted a folder and confirmed it. Data: `id`."),
        quiet_event(
            "change_many",
            "A user changed the selected conversations. Data: `ids`, and `archived` (a bool) or `tags` to add.",
        ),
        quiet_event("delete_many", "A user deleted the selected conversations and confirmed it. Data: `ids`."),
        quiet_event("export_many", "A user wants a file of the selected conversations. Data: `ids`, `format`."),
        quiet_event("summarise", "A user wants a summary of a conversation. Data: `id`, `title`."),
        quiet_event("article", "A user wants to make an article of a conversation. Data: `id`, `title`."),
        quiet_event("delete", "A user deleted a conversation and confirmed it. Data: `id`."),
        quiet_event(
            "export",
            "A user wants a file of a conversation. Data: `id` (None: of all), `format` (`markdown` or `json`).",
        ),
        quiet_event(
            "upload",
            "A user chose a file to import. Data: `name`, `text` (its content as UTF-8).",
        ),
        quiet_event("more", "A user has reached the end of the list, and there is more (see `has_more`). No data."),
    ]

    def __init__(
        self,
        value: Sequence[Summary] | Callable[[], Sequence[Summary]] | None = None,
        *,
        current: str | None = None,
        actions: Sequence[str] = ("rename", "delete"),
        parts: Sequence[str] = ("new", "search"),
        filter: Literal["list", "listener"] = "list",
        tags: Sequence[str] | None = None,
        has_more: bool = False,
        heading: str = "",
        links: Sequence[tuple[str, str]] = (),
        note: str = "",
        empty: str = "No conversations yet.",
        file_types: Sequence[str] = (".json",),
        height: int | str | None = 480,
        elem_id: str | None = None,
        elem_classes: list[str] | str | None = None,
        visible: bool = True,
        render: bool = True,
    ) -> None:
        """Args:
            value: the conversations, in the order of the list, or a function that returns them when the page loads.
            current: id of the open conversation.
            actions: which of ``Conversations.ACTIONS`` to offer in the menu of a conversation.
            parts: which of ``Conversations.PARTS`` to show.
            filter: what applies the search, the tag and the archive: "list" hides what does not match; with "listener",
                a listener of ``search`` returns the value that does.
            tags: the tags to choose from. None: those of the conversations in ``value``.
            has_more: ``value`` is not all; raises ``more`` at its end.
            heading: text at the top, which opens a new conversation. Empty: none.
            links: labels and URLs of links below the list.
            note: text below the list.
            empty: what an empty list says.
            file_types: suffixes of the files that can be imported.
            height: in pixels, or with a CSS unit. None: fills its parent, which has to be a flex column.

        Raises:
            ValueError: an action, a part or ``filter`` is unknown, or ``value`` is no list of conversations.
        """
        check_names("actions", actions, self.ACTIONS)
        check_names("parts", parts, self.PARTS)
        if filter not in ("list", "listener"):
            raise ValueError(f'filter must be "list" or "listener", not {filter!r}.')
        super().__init__(
            value,
            elem_id=elem_id,
            elem_classes=elem_classes,
            visible=visible,
            render=render,
            current=current,
            actions=list(actions),
            parts=list(parts),
            filter=filter,
            tags=None if tags is None else list(tags),
            has_more=has_more,
            heading=heading,
            links=[list(link) for link in links],
            note=note,
            empty=empty,
            file_types=list(file_types),
            height=height,
        )

    def validate(self, value: object) -> list[Summary]:
        return validate_summaries(value)

    def api_info(self) -> dict[str, Any]:
        return SUMMARIES_SCHEMA

    def example_payload(self) -> list[Summary]:
        return [{"id": "1", "title": "Hello"}]
