"""Checks invariants of the message tree, of documents and of cases that no database constraint expresses."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, inspect, text


@dataclass(frozen=True, slots=True)
class _Rule:
    """An invariant. ``broken`` selects the number of violations and the first violating id."""

    sentence: str
    broken: str


_RULES = (
    _Rule(
        "{count} of the messages have no valid parent (the first is {first}): it is missing, in another "
        "conversation, or not one step before them",
        """
        SELECT count(*), min(message.id) FROM message LEFT JOIN message AS parent
        ON parent.id = message.parent_id AND parent.conversation_id = message.conversation_id
        AND parent.position = message.position - 1
        WHERE parent.id IS NULL AND (message.parent_id IS NOT NULL OR message.position <> 0)
        """,
    ),
    _Rule(
        "{count} of the conversations show a branch whose last message is missing (the first is {first})",
        """
        SELECT count(*), min(conversation.id) FROM conversation LEFT JOIN message
        ON message.id = conversation.tip_message_id AND message.conversation_id = conversation.id
        WHERE message.id IS NULL AND conversation.tip_message_id IS NOT NULL
        """,
    ),
    _Rule(
        "{count} of the turns have no reply in their conversation (the first is {first})",
        """
        SELECT count(*), min(turn.id) FROM turn LEFT JOIN message
        ON message.id = turn.message_id AND message.conversation_id = turn.conversation_id
        AND message.role = 'assistant'
        WHERE message.id IS NULL
        """,
    ),
    _Rule(
        "{count} of the conversations that messages belong to are missing (the first is {first})",
        """
        SELECT count(*), min(used.id) FROM (SELECT DISTINCT conversation_id AS id FROM message) AS used
        LEFT JOIN conversation ON conversation.id = used.id
        WHERE conversation.id IS NULL
        """,
    ),
    _Rule(
        "{count} of the conversations have no owner (the first is {first})",
        """
        SELECT count(*), min(conversation.id) FROM conversation LEFT JOIN account ON account.id = conversation.user_id
        WHERE account.id IS NULL
        """,
    ),
)

_KNOWLEDGE_RULES = (
    _Rule(
        "{count} of the documents have lost the version that is searched (the first is {first})",
        """
        SELECT count(*), min(kb_document.id) FROM kb_document LEFT JOIN kb_version
        ON kb_version.document_id = kb_document.id AND kb_version.version = kb_document.version
        WHERE kb_document.version IS NOT NULL AND kb_version.text IS NULL
        """,
    ),
    _Rule(
        "{count} of the chunks are in another collection than their document (the first is {first})",
        """
        SELECT count(*), min(kb_chunk.id) FROM kb_chunk LEFT JOIN kb_document
        ON kb_document.id = kb_chunk.document_id AND kb_document.collection_id = kb_chunk.collection_id
        WHERE kb_document.id IS NULL
        """,
    ),
)

_CHUNK_RULES = (
    _Rule(
        "{count} of the chunks are neither of the version that is searched nor to be deleted (the first is {first})",
        """
        SELECT count(*), min(kb_chunk.id) FROM kb_chunk JOIN kb_document ON kb_document.id = kb_chunk.document_id
        WHERE NOT kb_document.has_stale_chunks
        AND (kb_document.version IS NULL OR kb_document.version <> kb_chunk.version)
        """,
    ),
)

_CASE_RULES = (
    _Rule(
        "{count} of the cases have another conversation than their inbox's (the first is {first})",
        """
        SELECT count(*), min(support_case.id) FROM support_case
        JOIN inbox ON inbox.id = support_case.inbox_id JOIN conversation ON conversation.id = support_case.id
        WHERE conversation.user_id <> inbox.user_id
        """,
    ),
    _Rule(
        "{count} of the conversations of inboxes have no case (the first is {first})",
        """
        SELECT count(*), min(conversation.id) FROM conversation JOIN inbox ON inbox.user_id = conversation.user_id
        LEFT JOIN support_case ON support_case.id = conversation.id
        WHERE support_case.id IS NULL
        """,
    ),
    _Rule(
        "{count} of the cases have times that are not those of their status (the first is {first})",
        """
        SELECT count(*), min(id) FROM support_case
        WHERE (status = 'resolved') <> (resolved_at IS NOT NULL) OR (status = 'snoozed') <> (snoozed_until IS NOT NULL)
        OR (status = 'bot' AND (handed_off_at IS NOT NULL OR waiting_since IS NOT NULL))
        OR (status IN ('open', 'snoozed') AND handed_off_at IS NULL)
        """,
    ),
    _Rule(
        "{count} of the cases lack some of their events (the first is {first})",
        """
        SELECT count(*), min(counted.id) FROM (
            SELECT support_case.id, count(case_event.id) AS events, max(case_event.sequence) AS newest
            FROM support_case LEFT JOIN case_event ON case_event.case_id = support_case.id GROUP BY support_case.id
        ) AS counted
        WHERE counted.events = 0 OR counted.events <> counted.newest
        """,
    ),
    _Rule(
        "{count} of the bot's messages follow a person's (the first is {first})",
        """
        SELECT count(*), min(said.id) FROM message AS said JOIN (
            SELECT conversation_id, min(position) AS position FROM message
            WHERE author_kind = 'agent' AND NOT internal GROUP BY conversation_id
        ) AS first_reply ON first_reply.conversation_id = said.conversation_id
        WHERE said.author_kind = 'bot' AND NOT said.internal AND said.position > first_reply.position
        """,
    ),
)


def broken_rules(connection: Connection) -> list[str]:
    """Broken invariants of the history, one sentence (without its full stop) per kind.

    The databases count the violations, so that memory use does not grow with the history.
    """
    sentences = []
    rules = list(_RULES)
    columns = inspect(connection).get_columns("kb_document") if inspect(connection).has_table("kb_document") else ()
    rules += _CHUNK_RULES if any(column["name"] == "has_stale_chunks" for column in columns) else ()
    for table, more in (("kb_document", _KNOWLEDGE_RULES), ("support_case", _CASE_RULES)):  # younger than the history
        rules += more if inspect(connection).has_table(table) else ()
    for rule in rules:
        count, first = connection.execute(text(rule.broken)).one()
        if count:
            sentences.append(rule.sentence.format(count=count, first=first))
    return sentences
