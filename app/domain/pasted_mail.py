"""Recognises a mail that was pasted into a message: its subject, and a line that only greets."""

from __future__ import annotations

import re

MAX_LINES = 40  #: of a text in which the header is looked for: an instruction and a forwarding note may stand above it
MAX_LINE_CHARS = 500
MAX_GREETING_WORDS = 8

#: The names of header fields as mail programs write them, in English, German, French, Spanish, Italian and Dutch.
_SUBJECT = re.compile(r"(?:subject|betreff|objet|asunto|oggetto|onderwerp)\s*:(.*)", re.IGNORECASE)
_OTHER_FIELD = re.compile(
    r"(?:from|to|cc|bcc|date|sent|reply-to|von|an|datum|gesendet|kopie|de|à|date|envoyé|para|fecha|enviado|da|a|data"
    r"|inviato|van|aan|verzonden)\s*:\s*\S",
    re.IGNORECASE,
)
#: What mail programs put before the subject of a reply or of a forwarded mail.
_REPLY_MARK = re.compile(r"^(?:(?:re|aw|fw|fwd|wg|tr|rv|rif|antw|sv)(?:\[\d+\])?\s*:\s*)+", re.IGNORECASE)
_MARKS = re.compile(r"^(?:[ \t]*>)+[ \t]?|\*\*")  # of a quote, and of a bold "**Subject:**"
_GREETING = re.compile(
    r"(?:hi|hello|hey|dear|greetings|good (?:morning|afternoon|evening|day)|to whom it may concern"
    r"|hallo|moin|liebe[rs]?|sehr geehrte[rsn]?|guten (?:tag|morgen|abend)|grüß gott|servus"
    r"|bonjour|bonsoir|salut|chère?s?|hola|buen[oa]s (?:días|tardes|noches)|estimad[oa]s?|ciao|gentile|geachte)\b",
    re.IGNORECASE,
)


def find_subject(message: str) -> str | None:
    """The subject of a mail whose header stands in the message's first lines; None if there is none.

    A line "Subject: ..." alone is no mail unless another field of a header is at most four lines away.
    """
    lines = [_MARKS.sub("", line[:MAX_LINE_CHARS]).strip() for line in message.splitlines()[:MAX_LINES]]
    for at, line in enumerate(lines):
        if (match := _SUBJECT.match(line)) is None:
            continue
        around = lines[max(at - 4, 0) : at] + lines[at + 1 : at + 5]
        subject = _REPLY_MARK.sub("", match[1].strip()).strip()
        if subject and any(_OTHER_FIELD.match(other) for other in around):
            return subject
    return None


def is_greeting(line: str) -> bool:
    """Whether a line greets and says nothing else, such as "Dear Sir or Madam," or "Hi team"."""
    line = line.strip()
    match = _GREETING.match(line)
    if match is None or len(line.split()) > MAX_GREETING_WORDS:
        return False
    rest = line[match.end() :].strip()
    if rest.endswith((",", "!", ":")) or not rest:
        return not re.search(r"[,!?:]", rest[:-1])
    return len(rest.split()) == 1 and rest[-1] not in "?;"
