"""The protocol between the bench and a peer's process: one line of JSON per request and per answer.

Standard library only: a peer's environment may have nothing else installed. A peer's module defines how the engine is
loaded and how it answers chats, and calls :func:`serve`.
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

#: Number of token ids at each end of a vocabulary that prompts do not use.
MARGIN = 10


@dataclass(frozen=True)
class Chat:
    """One request: token ids, and the number of tokens to generate."""

    prompt: tuple[int, ...]
    new_tokens: int
    after: int = 0  #: the chat is sent when each chat with 0 here has this many new tokens


@dataclass(frozen=True)
class TimedReply:
    """The timed reply to a chat. Times are seconds since the workload started."""

    asked: float
    times: list[float]  #: arrival of each new token
    tokens: list[int] = field(default_factory=list)  #: token ids; empty if the peer does not report them

    @property
    def first(self) -> float:
        """Time to the first token."""
        return self.times[0] - self.asked


@dataclass(frozen=True)
class PeerConfig:
    """The model and settings that a peer loads."""

    model: str  #: a folder, or a file for peers with a format of their own
    format: str  #: bf16, int8, int4
    threads: int
    context: int  #: largest number of tokens of one chat
    chats: int  #: largest number of concurrent chats
    kv_gib: float  #: size of the KV cache in GiB, for peers that need one
    variant: str = ""  #: the peer's variant, for example "eager"


class Peer(Protocol):
    """A loaded engine."""

    #: package -> version of the software that computes
    versions: dict[str, str]

    def run(self, chats: Sequence[Chat]) -> tuple[list[TimedReply], dict[str, float]]:
        """Answers all chats greedily and to their full length; also returns the peer's own measurements."""


def installed_versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def check_lengths(chats: Sequence[Chat], replies: Sequence[TimedReply]) -> None:
    """Raises RuntimeError for replies of the wrong length: a peer that stops early would look fast."""
    for chat, reply in zip(chats, replies, strict=True):
        if len(reply.times) != chat.new_tokens:
            raise RuntimeError(f"it wrote {len(reply.times)} tokens where {chat.new_tokens} were asked for")


def die_with_parent() -> None:
    """Makes the kernel kill this process with its parent: a frozen peer would outlive a killed bench. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def serve(load: Callable[[PeerConfig], Peer]) -> None:
    """Loads the peer, generates one token as a warm-up, reports ready, and then answers requests line by line."""
    die_with_parent()
    # Libraries' output must not mix with the answers.
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
    except Exception as error:  # reported to the bench, which continues without this peer
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
        except Exception as error:  # reported to the bench, which skips this workload
            traceback.print_exc()
            say({"error": error_line(error)})


def error_line(error: BaseException) -> str:
    """Formats an error in one line."""
    text = " ".join(str(error).split())
    return (text if isinstance(error, NotImplementedError) else f"{type(error).__name__}: {text}")[:400]


def arriving_late(chats: Sequence[Chat]) -> bool:
    return any(chat.after for chat in chats)


def refuse_late_chats(chats: Sequence[Chat]) -> None:
    """Raises NotImplementedError for a chat that arrives after others, which a peer with fixed batches cannot take."""
    if arriving_late(chats):
        raise NotImplementedError("cannot add a chat to a running batch")


def refuse_several_chats(chats: Sequence[Chat]) -> None:
    """Raises NotImplementedError for several chats at once."""
    if len(chats) > 1:
        raise NotImplementedError("answers one chat at a time")


def common_prefix(cached: Sequence[int], prompt: Sequence[int]) -> int:
    """Returns how many tokens a prompt shares with those in the KV cache.

    The prompt's last token never counts: computing it gives the first new one.
    """
    common = 0
    while common < min(len(cached), len(prompt) - 1) and cached[common] == prompt[common]:
        common += 1
    return common
