"""Mail that was pasted into a message, and titles made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.pasted_mail import find_subject, is_greeting
from app.domain.text import TITLE_CHARS, as_title, title_from

MAIL = """From: Ada <ada@example.com>
To: desk@example.com
Subject: RE: Fwd: Parcel 4711 is late

Dear Sir or Madam,

where is it?"""


@pytest.mark.parametrize(
    ("message", "subject"),
    [
        (MAIL, "Parcel 4711 is late"),
        (f"Please answer this customer:\n\n{MAIL}", "Parcel 4711 is late"),
        ("\n".join(f"> {line}" for line in MAIL.splitlines()), "Parcel 4711 is late"),
        ("**Von:** Ada\n**Gesendet:** Montag\n**Betreff:** AW: WG: Rechnung fehlt\n\nHallo", "Rechnung fehlt"),
        ("Von: Ada\nGesendet: Montag\nBetreff: AW: WG: Rechnung fehlt\n\nHallo", "Rechnung fehlt"),
        ("-----Original Message-----\nSubject: Refund\nDate: Mon, 3 Nov\n\nHi", "Refund"),
        ("De : Jean\nObjet : Re[2]: Facture\n", "Facture"),
        ("Subject: Refund\n\nWrite a mail with this subject.", None),
        ("From: Ada\nTo: Bob\n\nNo subject here", None),
        ("From: Ada\nSubject:\n\nHi", None),
        ("From: Ada\nSubject: Re:\n\nHi", None),
        ("Which fields does a mail have? From: and subject: come to mind.", None),
        ("x\n" * 100 + MAIL, None),
        ("", None),
    ],
)
def test_the_subject_of_a_pasted_mail_is_found(message: str, subject: str | None) -> None:
    assert find_subject(message) == subject


@pytest.mark.parametrize(
    "line",
    [
        *("Hi", "Hello!", "Hi team,", "Hi there", "Dear Sir or Madam,", "Dear Mr. Smith:", "Good morning"),
        *("To whom it may concern,", "Sehr geehrte Damen und Herren,", "Guten Tag!", "Bonjour,", "HELLO"),
    ],
)
def test_a_line_that_only_greets_is_known(line: str) -> None:
    assert is_greeting(line)


@pytest.mark.parametrize(
    "line",
    [
        *("Hi, my printer is broken.", "Hi! What can you do?", "Hello world program in C", "Dearth of parts,"),
        *("Good morning routines for busy people", "Hello, write a poem!", "History of greetings,", "Hi?", ""),
    ],
)
def test_a_line_that_says_more_is_no_greeting(line: str) -> None:
    assert not is_greeting(line)


@pytest.mark.parametrize(
    ("message", "title"),
    [
        (MAIL, "Parcel 4711 is late"),
        ("Hi team,\n\nmy printer is on fire.\nBob", "my printer is on fire."),
        ("Hello!", "Hello!"),
        ("Hi\n\nDear Bob,\n", "Hi"),
        ("\n" * 500 + "Hi,\nwhat is top-p?", "what is top-p?"),
        ("From: Ada\nSubject: Dear customer,\n\nHi", "Dear customer,"),
        ("From: a\nSubject: " + "word " * 40, "word word word word word word word word word word word word…"),
    ],
)
def test_a_title_says_what_a_mail_is_about(message: str, title: str) -> None:
    assert title_from(message) == title


def test_the_model_cannot_make_a_greeting_a_title() -> None:
    assert as_title("Dear Bob", about="Dear Bob, the printer is on fire.") is None
    assert as_title("Printer on fire", about="Dear Bob, the printer is on fire.") == "Printer on fire"


@given(st.lists(st.sampled_from(["From: a", "Subject: b", "Re:", "Hi", ">", "", ",", "To: c", "\u2028"]), max_size=60))
def test_titles_of_any_header_are_one_short_line(lines: list[str]) -> None:
    title = title_from("\n".join(lines))
    assert 0 < len(title) <= TITLE_CHARS + 1
    assert len(title.splitlines()) == 1
