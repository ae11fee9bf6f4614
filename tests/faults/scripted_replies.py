"""What the servers of these tests reply: a text of its own for each question, so that whoever reads can tell."""

from __future__ import annotations

import json
import random
import re
from hashlib import sha256

_VOCABULARY = ("one", "zwei", "trois", "четыре", "五", "sechs\n", "سبعة", "🙂", "nine,", "ten. ")


def make_question(number: int, words: int) -> str:
    """A question that nobody else asks, for a reply of so many words."""
    return f"Question {number}: please ({words} words)"


def visitor_question(number: int, words: int) -> str:
    """A visitor's question that nobody else asks, to which the bot writes so many words."""
    return f"Question {number}: please ({words} words of the bot)"


def asked_of_bot(prompt: str) -> str | None:
    """The question for the bot's reply to a visitor, whose last one is in the prompt; None if there is none."""
    asked = re.findall(r"Question (\d+): please \((\d+) words of the bot\)", prompt)
    return make_question(int(asked[-1][0]), int(asked[-1][1])) if asked else None


def call_question(number: int, tool: str, **arguments: object) -> str:
    """A question whose reply calls this tool, and says what came of it."""
    return f"Question {number}: call {tool} with {json.dumps(arguments)}"


def called_tool(question: str) -> tuple[str, str] | None:
    """The tool that a question asks for, and its arguments; None if it asks for none."""
    asked = re.search(r": call (\w+) with (.*)", question)
    return (asked[1], asked[2]) if asked else None


def reply_pieces(question: str) -> list[str]:
    """The pieces of the reply. No reply begins as another one does."""
    asked = re.search(r"\((\d+) words\)", question)
    count = int(asked[1]) if asked else 5
    dice = random.Random(question)
    first = f"Reply {sha256(question.encode()).hexdigest()[:8]}:"
    return [first, *(f" {dice.choice(_VOCABULARY)}{number}" for number in range(count))]


def whole_reply(question: str) -> str:
    return "".join(reply_pieces(question))
