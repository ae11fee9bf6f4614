"""Brings mails into an inbox of Deskmate, and mails its replies back. docs/mail-bridge.md says how to run it.

It needs Python 3.11 and nothing else. Run one process per mailbox; ``--once`` makes one round and ends.
"""

from __future__ import annotations

import hashlib
import imaplib
import json
import logging
import os
import re
import smtplib
import sqlite3
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.header import decode_header, make_header
from email.message import EmailMessage, Message
from email.parser import BytesParser
from email.utils import formataddr, formatdate, parseaddr
from html.parser import HTMLParser
from typing import Any

_log = logging.getLogger("mail_bridge")

TIMEOUT_SECONDS = 60
ROUND_SECONDS = 10
OVERLAP = timedelta(minutes=10)  # a change that is committed late has an earlier time than one that was seen
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
REFUSED = frozenset((400, 409, 413, 422))  # Deskmate's answers that another attempt does not change
TABLES = """
CREATE TABLE IF NOT EXISTS place (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS mail (
    id TEXT PRIMARY KEY, case_id TEXT, contact_id TEXT, sender TEXT, subject TEXT, refs TEXT
);
CREATE TABLE IF NOT EXISTS done (message_id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS looked (case_id TEXT PRIMARY KEY, revision INTEGER);
"""


class Deskmate:
    """Deskmate's API, with a key that has the scopes ``cases:read`` and ``cases:write``."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url.rstrip("/"), key

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Raises ``urllib.error.HTTPError`` if Deskmate refuses, and other errors of ``OSError`` if it is away."""
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return json.load(response)


class Bridge:
    """Takes its state from a SQLite file. Each step may be repeated: what was done is found, not done again."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._env = environment
        self._desk = Deskmate(environment["DESKMATE_URL"], environment["DESKMATE_KEY"])
        self._inbox = environment["DESKMATE_INBOX"]
        self._address = environment["MAIL_ADDRESS"].lower()
        self._user = environment.get("MAIL_USER", self._address)
        self._domain = self._address.rpartition("@")[2]
        self._db = sqlite3.connect(environment.get("MAIL_STATE", "mail_bridge.db"), timeout=1)
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")  # a second bridge would mail each reply a second time
        self._db.executescript(TABLES)
        with self._db:
            self._db.execute("INSERT OR IGNORE INTO place VALUES ('started', ?)", (datetime.now(UTC).isoformat(),))
        self._started = datetime.fromisoformat(self._place("started"))

    def run(self) -> None:
        """One round. What fails is logged, and is tried again in the next one."""
        for step in (self.receive, self.send):
            try:
                step()
            except (OSError, imaplib.IMAP4.error, json.JSONDecodeError) as error:
                reason = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
                _log.warning("%s: %s %s", step.__name__, error, reason)

    # From the mailbox to Deskmate.

    def receive(self) -> None:
        """Hands in the mails that came since the last round. They stay in the mailbox, unread."""
        with self._imap() as imap:
            imap.login(self._user, self._env["MAIL_PASSWORD"])
            _, (status,) = imap.status("INBOX", "(UIDNEXT UIDVALIDITY)")
            numbers = dict(re.findall(r"(UIDNEXT|UIDVALIDITY) (\d+)", status.decode()))
            imap.select("INBOX")
            last = self._last_uid(numbers)
            # After the server has numbered its mails anew, those since the first start are handed in again, once.
            since = ("SINCE", f"{self._started:%d}-{MONTHS[self._started.month - 1]}-{self._started:%Y}")
            _, (found,) = imap.uid("SEARCH", f"UID {last + 1}:*", *(since if last == 0 else ()))
            for uid in sorted(int(uid) for uid in (found or b"").split() if int(uid) > last):
                _, data = imap.uid("FETCH", str(uid), "(BODY.PEEK[])")
                if data and isinstance(data[0], tuple):  # otherwise it was deleted meanwhile
                    try:
                        self._hand_in(data[0][1])
                    except urllib.error.HTTPError as error:
                        if error.code not in REFUSED:
                            raise
                        _log.warning("Deskmate refuses mail %d, which is flagged: %s", uid, error.read().decode())
                        imap.uid("STORE", str(uid), "+FLAGS", r"(\Flagged)")
                with self._db:
                    self._put("uid", str(uid))

    def _last_uid(self, numbers: dict[str, str]) -> int:
        """The last mail that was handed in. The first start begins with what comes from then on."""
        if self._place("validity") != numbers["UIDVALIDITY"]:
            is_first = not self._place("validity")
            with self._db:
                self._put("validity", numbers["UIDVALIDITY"])
                self._put("uid", str(int(numbers["UIDNEXT"]) - 1) if is_first else "0")
        return int(self._place("uid"))

    def _hand_in(self, raw: bytes) -> None:
        mail = BytesParser().parsebytes(raw)
        (name, sender), own_id = sender_of(mail), header(mail, "Message-ID")
        # Deskmate stores an id once: a mail that is handed in twice is one message.
        client_id = hashlib.sha256(own_id.encode() or raw).hexdigest()
        answered = re.findall(r"<[^<>\s]+>", header(mail, "In-Reply-To") + header(mail, "References"))
        subject, text = header(mail, "Subject"), text_of(mail)
        if self._is_automatic(mail, sender, own_id):
            # A bounce, or an answer of a machine: agents read it, the contact did not write it.
            ids = re.findall(r"<[^<>\s]+>", raw.decode("latin-1"))
            if (case_id := self._case_of(ids)) is not None and not own_id.endswith(f".deskmate@{self._domain}>"):
                self._note(
                    case_id, f"Automatic mail from {sender or 'no address'}: {subject}\n\n{text[:2000]}", client_id
                )
            return
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", sender):
            _log.warning("a mail without a sender was left out: %r", subject)
            return
        # Without a word of its own, such as a lone picture, a mail still has its subject.
        message = {"text": text or subject or "(empty mail)", "client_id": client_id}
        contact = {"external_id": sender, "email": sender, "name": name[:200] or None}
        stored = None
        if (case_id := self._case_of(answered, sender)) is not None:
            try:
                stored = self._desk.call("POST", f"/api/cases/{case_id}/messages", message | {"author": "contact"})
            except urllib.error.HTTPError as error:
                if error.code not in (404, 409):  # it was deleted, or merged into another one
                    raise
        if stored is None:
            new = message | {"inbox_id": self._inbox, "contact": contact}
            stored = self._desk.call("POST", "/api/cases", new)
        case = stored["case"]
        refs = " ".join([*re.findall(r"<[^<>\s]+>", header(mail, "References"))[-20:], own_id]).strip()
        self._remember(own_id or f"<{client_id}>", case["id"], case["contact"]["id"], sender, subject, refs)

    def _is_automatic(self, mail: Message, sender: str, own_id: str) -> bool:
        return (
            header(mail, "Auto-Submitted").partition(";")[0].strip().lower() not in ("", "no")
            or header(mail, "Precedence").strip().lower() in ("bulk", "junk", "list", "auto_reply")
            or header(mail, "Return-Path").strip() == "<>"
            or sender.startswith(("mailer-daemon@", "postmaster@"))
            or sender == self._address
            or own_id.endswith(f".deskmate@{self._domain}>")
        )

    def _case_of(self, ids: list[str], sender: str | None = None) -> str | None:
        """The case of the mails with these ids, but only if they were exchanged with this sender."""
        for id in reversed(ids):
            row = self._db.execute("SELECT case_id, sender FROM mail WHERE id = ?", (id,)).fetchone()
            if row is not None and sender in (None, row[1]):
                return str(row[0])
        return None

    # From Deskmate to the contacts.

    def send(self) -> None:
        """Mails the replies of the inbox's cases that have changed since the last round."""
        until = datetime.fromisoformat(self._place("until") or self._started.isoformat()) - OVERLAP
        newest, is_whole = None, True
        with ExitStack() as stack:
            self._smtp, self._stack = None, stack
            for case in self._changed_cases(until):
                newest = newest or case["updated_at"]
                known = self._db.execute("SELECT revision FROM looked WHERE case_id = ?", (case["id"],)).fetchone()
                if known is None or known[0] != case["revision"]:
                    is_whole &= self._send_replies(case, until)
        if newest is not None and is_whole:  # otherwise the next round looks at all of them again
            with self._db:
                self._put("until", newest)

    def _changed_cases(self, until: datetime) -> Iterator[dict[str, Any]]:
        cursor: str | None = ""
        while cursor is not None:
            query = urllib.parse.urlencode(
                {"inbox": self._inbox, "limit": 100} | ({"cursor": cursor} if cursor else {})
            )
            page = self._desk.call("GET", f"/api/cases?{query}")
            for case in page["cases"]:  # the latest change first
                if datetime.fromisoformat(case["updated_at"]) < until:
                    return
                yield case
            cursor = page["next"]

    def _send_replies(self, case: dict[str, Any], until: datetime) -> bool:
        whole = self._desk.call("GET", f"/api/cases/{case['id']}")
        messages = whole["messages"]
        while whole["has_earlier"] and datetime.fromisoformat(messages[0]["created_at"]) >= until:
            whole = self._desk.call("GET", f"/api/cases/{case['id']}?before={messages[0]['id']}")
            messages = whole["messages"] + messages
        is_whole = True
        for message in messages:
            is_reply = message["author"]["kind"] in ("agent", "bot") and message["status"] == "complete"
            is_new = datetime.fromisoformat(message["created_at"]) >= self._started
            if message["internal"] or not is_reply or not is_new or not message["text"]:  # notes never leave
                continue
            if self._db.execute("SELECT 1 FROM done WHERE message_id = ?", (message["id"],)).fetchone() is None:
                is_whole &= self._send_reply(case, message)
        if is_whole:
            with self._db:
                self._db.execute("REPLACE INTO looked VALUES (?, ?)", (case["id"], case["revision"]))
        return is_whole

    def _send_reply(self, case: dict[str, Any], message: dict[str, Any]) -> bool:
        """Mails a reply; returns False if it has to be tried again. Between the server's yes and our note of it, a kill
        leads to a second mail, which has the same Message-ID."""
        contact = case["contact"]
        last = self._db.execute(
            "SELECT id, sender, subject, refs FROM mail WHERE contact_id = ? AND refs != '' "
            "ORDER BY case_id = ? DESC, rowid DESC LIMIT 1",
            (contact["id"], case["id"]),
        ).fetchone()
        answered, recipient, subject, refs = last or ("", contact["email"], case["subject"], "")
        mail, own_id = EmailMessage(), f"<{message['id']}.deskmate@{self._domain}>"
        problem = "the contact has no e-mail address" if not recipient else None
        try:
            if problem is None:
                subject = clean(re.sub(r"(?i)^((re|aw)\s*:\s*)+", "", subject))[:200]
                mail["From"] = formataddr((self._env.get("MAIL_NAME", ""), self._address))
                mail["To"], mail["Subject"] = clean(recipient), f"Re: {subject}"
                mail["Date"], mail["Message-ID"] = formatdate(), own_id
                if answered:
                    mail["In-Reply-To"], mail["References"] = clean(answered), clean(refs)
                if message["author"]["kind"] == "bot":
                    mail["Auto-Submitted"] = "auto-replied"
                mail.set_content(message["text"])
                self._connected().send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            ((code, words),) = error.recipients.values()
            if code < 500:  # such as greylisting
                return False
            problem = f"{code} {words.decode(errors='replace')}"
        except (smtplib.SMTPNotSupportedError, UnicodeError, ValueError) as error:
            problem = str(error)
        except smtplib.SMTPDataError as error:
            if error.smtp_code < 500:
                return False
            problem = f"{error.smtp_code} {error.smtp_error!r}"
        if problem is not None:
            self._note(case["id"], f"This reply was not mailed: {problem}", f"unsent-{message['id']}")
        with self._db:
            self._db.execute("INSERT OR IGNORE INTO done VALUES (?)", (message["id"],))
            if problem is None:
                self._insert(own_id, case["id"], contact["id"], recipient, subject, "")
        return True

    def _note(self, case_id: str, text: str, client_id: str) -> None:
        try:
            self._desk.call("POST", f"/api/cases/{case_id}/notes", {"text": text, "client_id": client_id})
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409):  # the case was deleted, or the note is there already
                raise

    # Connections and state.

    def _imap(self) -> imaplib.IMAP4:
        host, port = self._env["IMAP_HOST"], int(self._env.get("IMAP_PORT", "993"))
        if self._env.get("MAIL_TLS") == "off":
            return imaplib.IMAP4(host, port, timeout=TIMEOUT_SECONDS)
        return imaplib.IMAP4_SSL(host, port, ssl_context=ssl.create_default_context(), timeout=TIMEOUT_SECONDS)

    def _connected(self) -> smtplib.SMTP:
        if self._smtp is None:
            host, port = self._env["SMTP_HOST"], int(self._env.get("SMTP_PORT", "587"))
            context = ssl.create_default_context()
            if port == 465:
                smtp: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_SECONDS, context=context)
            else:
                smtp = smtplib.SMTP(host, port, timeout=TIMEOUT_SECONDS)
            self._stack.enter_context(smtp)
            if port != 465 and self._env.get("MAIL_TLS") != "off":
                smtp.starttls(context=context)
            smtp.login(self._user, self._env["MAIL_PASSWORD"])
            self._smtp = smtp
        return self._smtp

    _smtp: smtplib.SMTP | None = None

    def _place(self, name: str) -> str:
        row = self._db.execute("SELECT value FROM place WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row is not None else ""

    def _put(self, name: str, value: str) -> None:
        self._db.execute("REPLACE INTO place VALUES (?, ?)", (name, value))

    def _remember(self, *row: str) -> None:
        with self._db:
            self._insert(*row)

    def _insert(self, *row: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO mail VALUES (?, ?, ?, ?, ?, ?)", row)


# Texts.

HISTORY = re.compile(r"(On|Am|Le|El|Il|Op|Em)\b.{10,300}:", re.DOTALL)  # "On Monday, Eva <eva@example.org> wrote:"
ORIGINAL = re.compile(r"-{2,} ?(Original Message|Original-Nachricht|Ursprüngliche Nachricht) ?-{2,}", re.IGNORECASE)


def header(mail: Message, name: str) -> str:
    """A header in one line, decoded; empty if there is none."""
    return decoded_words(str(mail.get(name, "")))


def sender_of(mail: Message) -> tuple[str, str]:
    """The name and the address that a mail is from, in lower case. The address is found before names are decoded, which
    may hold a comma, as in "Miller, Eva", or another address."""
    name, address = parseaddr(clean(str(mail.get("From", ""))))
    return decoded_words(name), address.lower()


def decoded_words(value: str) -> str:
    """The value of a header in one line, decoded."""
    try:
        return clean(str(make_header(decode_header(value))))
    except (ValueError, LookupError):  # an encoding that no one knows
        return clean(value)


def clean(text: str) -> str:
    """The text in one line and without control characters, so that it cannot become a header of its own."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def text_of(mail: Message) -> str:
    """The words of a mail without the quoted history, and the names of its files."""
    plain, from_html, files = [], [], []
    for part in mail.walk():
        if part.is_multipart():
            continue
        content = part.get_payload(decode=True)
        content = content if isinstance(content, bytes) else b""
        is_file = part.get_content_disposition() == "attachment" or part.get_filename() is not None
        if is_file or part.get_content_maintype() != "text":
            name = clean(part.get_filename() or part.get_content_type())
            files.append(f"[File in the mailbox: {name}, {len(content) / 1024:.0f} KB]")
        elif part.get_content_subtype() == "html":
            parser = HtmlText()
            parser.feed(decoded(part, content))
            from_html.append("".join(parser.words))
        else:
            plain.append(decoded(part, content))
    lines = [line.rstrip() for line in "\n".join(plain or from_html).splitlines()]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return "\n".join([without_history(text), *files]).strip()


def decoded(part: Message, content: bytes) -> str:
    """The text of a part; bytes that are not of its charset become replacement characters."""
    try:
        return content.decode(str(part.get_content_charset("utf-8")), errors="replace")
    except LookupError:
        return content.decode("utf-8", errors="replace")


def without_history(text: str) -> str:
    """Leaves out the quoted mails at the end. Quotes between words of the contact stay, and so do quotes alone."""
    lines = ORIGINAL.split(text)[0].rstrip().splitlines()
    end = len(lines)
    while end and (not lines[end - 1] or lines[end - 1].startswith(">")):
        end -= 1
    if end < len(lines):
        for number in (1, 2, 3):  # programs break the line that introduces the quote
            if HISTORY.fullmatch(" ".join(lines[max(0, end - number) : end])):
                end = max(0, end - number)
                break
    return "\n".join(lines[:end]).strip() or text


class HtmlText(HTMLParser):
    """The words of an HTML mail, for mails that have no plain text."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self._hidden += tag in ("style", "script", "head")
        if tag in ("br", "p", "div", "li", "tr", "blockquote"):
            self.words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "script", "head") and self._hidden > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(re.sub(r"\s+", " ", data))


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    bridge = Bridge(os.environ)
    bridge.run()
    while "--once" not in sys.argv:
        time.sleep(ROUND_SECONDS)
        bridge.run()
