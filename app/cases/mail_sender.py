"""Mails agents' replies to visitors who have gone, while the server runs."""

from __future__ import annotations

import asyncio
import logging
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate, parseaddr

from app.cases.sentences import Sentence, say
from app.domain.reply_mails import MailServer, is_address
from app.domain.text import one_line
from app.errors import StorageUnavailable
from app.store.cases.reply_mails import DueMail, ReplyMails

_log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  #: between two looks for what is due
TIMEOUT_SECONDS = 15.0  #: for each answer of the server of mail
CLOSE_SECONDS = 3.0  #: for the mail under way when the process stops
MAX_ERROR_CHARS = 300


class MailRefusedError(Exception):
    """A mail that the server of mail, or its address, will refuse at every attempt."""


class _AbandonedError(Exception):
    """The process stops before the server of mail has answered."""


class MailSender:
    """Sends the mails that are due, one at a time."""

    def __init__(self, mails: ReplyMails, server: MailServer) -> None:
        self._mails = mails
        self._server = server
        self._sending = asyncio.Lock()
        self._attempt: _Attempt | None = None
        self._is_closing = False

    async def run(self) -> None:
        """Runs until cancelled. Survives an unavailable database, and tries again."""
        while True:
            try:
                while await self.send_due():
                    pass
            except StorageUnavailable as error:
                _log.warning("mails wait for the database: %s", error.message)
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self, timeout_s: float) -> None:
        """Waits for the mail under way, and sends no other. One that is not sent in time is due at the next start."""
        self._is_closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._sending:
                return
        if self._attempt is not None:
            self._attempt.abandon()
        async with self._sending:  # it is given back
            pass

    async def send_due(self) -> bool:
        """Sends the mail that has been due for the longest time; returns False if none is, or the process stops."""
        async with self._sending:
            due = None if self._is_closing else await self._mails.claim()
            if due is None:
                return False
            if self._is_closing:  # since it was claimed
                await self._mails.release(due)
                return False
            await self._send(due)
            return True

    async def _send(self, due: DueMail) -> None:
        error, for_good = None, False
        try:
            await self._hand_over(compose(due, self._server.sender), due.email)
        except _AbandonedError:
            await self._mails.release(due)
            return
        except MailRefusedError as refused:
            error, for_good = str(refused), True
        except (OSError, smtplib.SMTPException) as failed:
            error = _reason(failed)
        except Exception as failed:  # one mail must not keep all others from being sent
            _log.exception("a mail failed")
            error = f"The mail failed: {type(failed).__name__}"
        if error is None:
            await self._mails.sent(due)
        else:
            _log.warning("a mail for case %s was not sent: %s", due.case_id, error)
            await self._mails.failed(due, one_line(error)[:MAX_ERROR_CHARS], for_good=for_good)

    async def _hand_over(self, mail: EmailMessage, recipient: str) -> None:
        attempt = self._attempt = _Attempt(mail, recipient, self._server)
        try:
            await attempt.result
        finally:
            attempt.abandon()
            self._attempt = None


class _Attempt:
    """Hands one mail to the server of mail, in a thread of its own.

    The thread is a daemon: nothing can interrupt the lookup of a name, or a connection that is being made, and a
    process that stops waits for neither.
    """

    def __init__(self, mail: EmailMessage, recipient: str, server: MailServer) -> None:
        self._mail, self._recipient, self._server = mail, recipient, server
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[None] = self._loop.create_future()
        self._lock = threading.Lock()
        self._smtp: smtplib.SMTP | None = None
        self._is_abandoned = self._is_sent = False
        threading.Thread(target=self._run, name="mail", daemon=True).start()

    def abandon(self) -> None:
        """Ends the attempt, if it has not ended: the thread hands over nothing any more."""
        with self._lock:
            if self._is_sent:
                return  # the result is on its way
            self._is_abandoned = True
            connection = self._smtp.sock if self._smtp is not None else None
        if connection is not None:
            with suppress(OSError):  # the thread has just closed it
                # That of a TLS socket would drop the encryption first.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        if not self.result.done():
            self.result.set_exception(_AbandonedError())

    def _run(self) -> None:
        error: Exception | None = None
        try:
            self._hand_over()
        except Exception as failed:
            error = failed
        with suppress(RuntimeError):  # the loop has ended, after it has abandoned this
            self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: Exception | None) -> None:
        if self.result.done():
            return
        if error is None:
            self.result.set_result(None)
        else:
            self.result.set_exception(error)

    def _hand_over(self) -> None:
        smtp = _connect(self._server)
        try:
            with self._lock:
                if self._is_abandoned:
                    return
                self._smtp = smtp
            _send(smtp, self._mail, self._recipient, self._server, self._check)
            with self._lock:
                self._is_sent = True
        finally:
            smtp.close()  # what it answers to QUIT changes nothing

    def _check(self) -> None:
        """Ends the thread's work if it was abandoned while the connection had no socket that could be shut down.

        Raises:
            OSError: it was.
        """
        with self._lock:
            if self._is_abandoned:
                raise OSError("The process stops.")


def compose(due: DueMail, sender: str) -> EmailMessage:
    """The mail in the visitor's language. Its Message-ID is the same at every attempt.

    Raises:
        MailRefusedError: the visitor's address cannot be one.
    """

    def sentence(which: Sentence, **values: str) -> str:
        return say(which, due.language, **values)

    mail = EmailMessage()
    name, address = parseaddr(sender)
    if not is_address(due.email):
        raise MailRefusedError(f"{due.email!r} is no address that mails can be sent to.")
    mail["To"] = Address(addr_spec=due.email)
    mail["From"] = Address(one_line(name or due.inbox_name), addr_spec=address)
    mail["Subject"] = one_line(sentence(Sentence.MAIL_SUBJECT, name=due.inbox_name))
    mail["Date"], mail["Message-ID"] = formatdate(), f"<{due.id}.deskmate@{address.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"  # no program should answer it
    begin = sentence(Sentence.MAIL_BEGIN, name=due.inbox_name)
    chat = sentence(Sentence.MAIL_SITE, site=due.website) if due.website else sentence(Sentence.MAIL_NO_SITE)
    end = f"{sentence(Sentence.MAIL_DO_NOT_ANSWER)} {chat}\n{sentence(Sentence.MAIL_WHY)}"
    mail.set_content("\n\n".join([begin, *due.texts, f"-- \n{end}"]))
    return mail


def _connect(server: MailServer) -> smtplib.SMTP:
    if server.tls == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_SECONDS, context=context)
    return smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_SECONDS)


def _send(
    smtp: smtplib.SMTP, mail: EmailMessage, recipient: str, server: MailServer, check: Callable[[], None]
) -> None:
    """Sends the mail. ``check`` is called once the connection has the socket that it keeps, and may end the sending."""
    try:
        if server.tls == "starttls":
            smtp.starttls(context=ssl.create_default_context())
            check()
        if server.user is not None:
            smtp.login(server.user, server.password or "")
        smtp.send_message(mail, to_addrs=[recipient])
    except smtplib.SMTPRecipientsRefused as error:
        code, said = error.recipients[recipient]
        raise (MailRefusedError if code >= 500 else OSError)(_answer(code, said)) from error
    except smtplib.SMTPDataError as error:
        answer = _answer(error.smtp_code, error.smtp_error)
        raise (MailRefusedError if error.smtp_code >= 500 else OSError)(answer) from error
    except smtplib.SMTPNotSupportedError as error:
        if server.tls == "starttls" and not smtp.has_extn("starttls"):
            raise OSError("The server of mail offers no STARTTLS. Set APP_MAIL_TLS to tls or none.") from error
        raise MailRefusedError(f"The server of mail cannot send to this address: {error}") from error


def _answer(code: int, said: bytes | str) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    return f"The server of mail answered {code} {text}"


def _reason(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return "The server of mail does not accept APP_MAIL_USER and APP_MAIL_PASSWORD."
    if isinstance(error, smtplib.SMTPResponseException):
        return _answer(error.smtp_code, error.smtp_error)
    if isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError):
        return f"The server of mail did not answer within {TIMEOUT_SECONDS:.0f} seconds."
    if isinstance(error, ConnectionError):
        return f"The server of mail cannot be reached: {error.strerror or error}"
    return str(error) or type(error).__name__
