"""Sentences to visitors that no model writes, in the visitor's language: ``locale/LANGUAGE.po`` has each language."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import cache
from pathlib import Path

from babel import Locale, UnknownLocaleError, negotiate_locale
from babel.dates import format_skeleton, format_time
from babel.messages.pofile import read_po

from app.domain.opening_hours import zone

DEFAULT_LANGUAGE = "en"
_FOLDER = Path(__file__).with_name("locale")


class Sentence(StrEnum):
    """The sentences in English, which are the keys of the others."""

    HANDED_OFF = "A person from our team will answer you here."
    ASKED_FOR_PERSON = "You asked for a person. One from our team will answer you here."
    FAILURE = "The assistant can't answer at the moment. A person from our team will answer you here."
    TIMEOUT = "The assistant is too busy at the moment. A person from our team will answer you here."
    CLOSED = (
        "We're closed right now and open again {when}. Leave your e-mail address if you'd like to hear from us there."
    )
    PASSAGES = "These passages of our documents match your question best. No person has checked them for it:"
    TALK_TO_PERSON = "Talk to a person"
    WHEN = "on {day} at {time} (your time)"
    CONTACT = "You"
    BOT = "Assistant"
    AGENT = "Team"
    TRANSCRIPT = "Your talk with {name}"
    MAIL_SUBJECT = "An answer from {name}"
    MAIL_BEGIN = "{name} has answered you in the chat:"
    MAIL_DO_NOT_ANSWER = "Please don't answer this e-mail: nobody reads what comes back."
    MAIL_SITE = "To write to us, open the chat at {site} again, on the device that you wrote from."
    MAIL_NO_SITE = "To write to us, open the chat on our website again, on the device that you wrote from."
    MAIL_WHY = "You get this e-mail because this address was left in our chat."


@cache
def languages() -> tuple[str, ...]:
    """The languages there are, the default first."""
    return (DEFAULT_LANGUAGE, *sorted(file.stem for file in _FOLDER.glob("*.po")))


def language_of(wanted: str | None) -> str:
    """The language that suits a visitor's best, such as ``de`` for ``de-AT``; the default if none does."""
    return negotiate_locale([(wanted or "").replace("_", "-")], languages(), sep="-") or DEFAULT_LANGUAGE


def say(sentence: Sentence, language: str | None, **values: str) -> str:
    """The sentence in the visitor's language."""
    text = _translations(language_of(language)).get(sentence, str(sentence))
    return text.format(**values)


def moment(at: datetime, language: str | None, time_zone: str | None) -> str:
    """A moment by the visitor's clock, such as "on Monday, November 30 at 9:00 AM (your time)"."""
    there = at.astimezone(zone(time_zone))
    try:
        locale = Locale.parse((language or DEFAULT_LANGUAGE).replace("-", "_"))
    except (ValueError, UnknownLocaleError):
        locale = Locale.parse(DEFAULT_LANGUAGE)
    if locale.language != language_of(language):  # the sentence around it is in another language
        locale = Locale.parse(language_of(language))
    day = format_skeleton("MMMMEEEEd", there, locale=locale)
    return say(Sentence.WHEN, language, day=day, time=format_time(there, "short", locale=locale))


@cache
def _translations(language: str) -> Mapping[str, str]:
    if language == DEFAULT_LANGUAGE:
        return {}
    with (_FOLDER / f"{language}.po").open("rb") as file:
        catalogue = read_po(file, locale=language)
    return {str(entry.id): str(entry.string) for entry in catalogue if entry.id and entry.string and not entry.fuzzy}
