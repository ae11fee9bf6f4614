"""Servers of mail on this machine: one that takes mails by SMTP as a test tells it, and one mailbox over IMAP."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage

USER, PASSWORD = "desk@shop.example", "a password of mail"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class SmtpServer:
    """Takes mails of those who know :data:`PASSWORD`."""

    port: int = 0
    hangs: bool = False  #: says nothing, not even its greeting
    refusal: str | None = None  #: answers each recipient with this, such as "550 No such user"
    num_connections: int = 0
    takes: asyncio.Event | None = None  #: has a mail, and says so only once this is set
    breaks_after_data: bool = False  #: takes a mail, and ends the connection without saying so
    raw: list[bytes] = field(default_factory=list)  #: the mails
    recipients: list[str] = field(default_factory=list)  #: of each mail

    @property
    def mails(self) -> list[EmailMessage]:
        return [message_from_bytes(mail, policy=policy.default) for mail in self.raw]

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        if self.hangs:
            await asyncio.sleep(3600)

        async def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())
            await writer.drain()

        await say("220 mail.test ESMTP")
        recipient, is_known = "", False
        while line := (await reader.readline()).decode().strip():
            command = line.upper()
            if command.startswith("EHLO"):
                await say("250-mail.test\r\n250-AUTH PLAIN\r\n250 8BITMIME")
            elif command.startswith("AUTH PLAIN"):
                _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                is_known = (user, password) == (USER, PASSWORD)
                await say("235 Welcome" if is_known else "535 Authentication failed")
            elif command.startswith("RCPT") and is_known:
                recipient = line[line.index("<") + 1 : line.index(">")]
                await say(self.refusal or "250 OK")
            elif command == "DATA":
                await say("354 Go on")
                content = await reader.readuntil(b"\r\n.\r\n")
                self.raw.append(content.removesuffix(b".\r\n").replace(b"\r\n..", b"\r\n."))
                self.recipients.append(recipient)
                if self.breaks_after_data:
                    return
                if self.takes is not None:
                    await self.takes.wait()
                await say("250 OK")
            elif command == "QUIT":
                return await say("221 Bye")
            else:
                await say("250 OK" if is_known or command == "RSET" else "530 Authentication required")


@dataclass
class ImapServer:
    """A mailbox with as much of IMAP4rev1 as reading new mails takes."""

    port: int = 0
    validity: int = 1
    mails: dict[int, bytes] = field(default_factory=dict)  #: by UID
    flags: dict[int, str] = field(default_factory=dict)

    def put(self, mail: bytes) -> int:
        """A mail arrives. Returns its UID."""
        uid = max(self.mails, default=0) + 1
        self.mails[uid] = mail
        return uid

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK ready\r\n")
        while line := (await reader.readline()).decode().strip():
            tag, command, *words = line.split()
            command, rest = command.upper(), " ".join(words)
            answer = "OK done"
            if command == "CAPABILITY":
                writer.write(b"* CAPABILITY IMAP4rev1\r\n")
            elif command == "LOGIN" and PASSWORD not in rest:
                answer = "NO wrong password"
            elif command == "STATUS":
                following = max(self.mails, default=0) + 1
                writer.write(f"* STATUS INBOX (UIDNEXT {following} UIDVALIDITY {self.validity})\r\n".encode())
            elif command == "SELECT":
                writer.write(f"* {len(self.mails)} EXISTS\r\n".encode())
            elif command == "UID":
                self._uid(rest, writer)
            writer.write(f"{tag} {answer}\r\n".encode())
            await writer.drain()
            if command == "LOGOUT":
                return

    def _uid(self, rest: str, writer: asyncio.StreamWriter) -> None:
        if found := re.match(r"SEARCH UID (\d+):\*", rest):
            last = max(self.mails, default=0)
            uids = [uid for uid in self.mails if uid >= int(found[1]) or uid == last]  # as the standard says
            writer.write(f"* SEARCH {' '.join(map(str, uids))}\r\n".encode())
        elif found := re.match(r"FETCH (\d+) \(BODY\.PEEK\[\]\)", rest):
            content = self.mails[int(found[1])]
            writer.write(f"* 1 FETCH (UID {found[1]} BODY[] {{{len(content)}}}\r\n".encode() + content + b")\r\n")
        elif found := re.match(r"STORE (\d+) \+FLAGS \((.*)\)", rest):
            self.flags[int(found[1])] = found[2]


@asynccontextmanager
async def _serving(talk: Talk) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client was killed
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(connected(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for task in tasks:
            task.cancel()
        server.close()


@asynccontextmanager
async def smtp_server() -> AsyncIterator[SmtpServer]:
    """Runs one on a free port of this machine."""
    server = SmtpServer()
    async with _serving(server.talk) as server.port:
        yield server


@asynccontextmanager
async def imap_server() -> AsyncIterator[ImapServer]:
    """Runs one on a free port of this machine."""
    server = ImapServer()
    async with _serving(server.talk) as server.port:
        yield server
