"""What the bench and a peer's process say to each other: a line of JSON each way.

Standard library alone: a peer may live in an environment that has nothing else of ours. A peer's module defines how
it is loaded and how it answers chats, and ends with :func:`serve`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

#: The tokens that no prompt uses, at both ends of a vocabulary.
MARGIN = 10


@dataclass(frozen=True)
class Chat:
    """One request: token ids, and how many new ones are wanted."""

    prompt: tuple[int, ...]
    new_tokens: int
    after: int = 0  #: it comes when each chat that has 0 here has so many new tokens


@dataclass(frozen=True)
class TimedReply:
    """What became of a chat. Seconds since the work began."""

    asked: float
    times: list[float]  #: of each new token
    tokens: list[int] = field(default_factory=list)  #: their ids; empty where the peer does not tell them

    @property
    def first(self) -> float:
        """Time to the first token."""
        return self.times[0] - self.asked


@dataclass(frozen=True)
class PeerConfig:
    """What a peer is asked to load."""

    model: str  #: a folder, or a file where the peer has a format of its own
    format: str  #: bf16, int8, int4
    threads: int
    context: int  #: most tokens of one chat
    chats: int  #: most chats at once
    kv_gib: float  #: memory for the KV cache, where the peer asks for a size
    variant: str = ""  #: one of the peer's own ways to run


class Peer(Protocol):
    """An engine that is loaded."""

    #: names and versions of what computes, as they are printed
    versions: dict[str, str]

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        """Answer all chats, greedily and to their full length; with what else it measured about itself."""


def installed_versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def check_lengths(chats: Sequence[Chat], replies: Sequence[TimedReply]) -> None:
    """A peer that stopped early would look quick."""
    for chat, reply in zip(chats, replies, strict=True):
        if len(reply.times) != chat.new_tokens:
            raise RuntimeError(f"it wrote {len(reply.times)} tokens where {chat.new_tokens} were asked for")


def die_with_parent() -> None:
    """A peer that waits frozen for its turn would outlive a bench that was killed. Linux only; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def serve(load: Callable[[PeerConfig], Peer]) -> None:
    """Load, answer one token to have everything in place, say so, and then answer a line with a line."""
    die_with_parent()
    # What libraries print must not come between the lines.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    parser = argparse.ArgumentParser()
    parser.add_argument("load", type=json.loads)
    asked = PeerConfig(**parser.parse_args().load)
    try:
        peer = load(asked)
        peer.run([Chat(tuple(range(MARGIN, MARGIN + 16)), 1)])
    except Exception as error:  # told to the bench, which goes on without this peer
        traceback.print_exc()
        say({"error": error_line(error)})
        return
    say({"ready": True, "versions": peer.versions})
    for line in sys.stdin:
        chats = [Chat(tuple(one["prompt"]), one["new_tokens"], one["after"]) for one in json.loads(line)]
        try:
            replies, extra = peer.run(chats)
            check_lengths(chats, replies)
            say({"replies": [asdict(reply) for reply in replies], "extra": extra})
        except Exception as error:  # told to the bench, which leaves this work out
            traceback.print_exc()
            say({"error": error_line(error)})


def error_line(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return (text if isinstance(error, NotImplementedError) else f"{type(error).__name__}: {text}")[:400]


def arriving_late(chats: Sequence[Chat]) -> bool:
    return any(chat.after for chat in chats)
