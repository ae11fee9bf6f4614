"""Measures how long a message takes to be accepted, and what the caches of the previous turn save of it.

    .venv/bin/python -m benchmarks.acceptance

A message is accepted once its prompt is prepared and it is in the database (SQLite, on disk). Conversations of 40 and
of 400 messages, in the guide model's tokenizer and chat template, with the sampled tokens of every reply; the replies
themselves are scripted, so that no model computes meanwhile. Prints medians in milliseconds: with both, and without the
cached context (which spares a read of the conversation), the previous prompt (which is extended), or either. Writes
JSON to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from app.domain.chat_settings import ChatSettings
from app.domain.ids import LOCAL_USER_ID, new_id
from app.domain.views import MessageStatus
from app.services.container import Services
from app.settings import AppSettings
from app.store.chat.new_turns import NewTurn
from app.store.chat.reply_writes import TurnOutcome
from app.turns.recent_contexts import RecentContexts
from benchmarks import machine
from benchmarks.result_files import write_result
from engine import Delta, Deltas, Engine, EngineSettings, FinishReason, PreparedPrompt, SamplingParams

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "models" / "guide"
CONTEXT_LENGTH = 1 << 17
REPLY = "Top-p keeps the most likely tokens whose probabilities sum to p, and samples among them."
SETTINGS = ChatSettings(max_tokens=64)
VARIANTS = {"both": "", "no cached context": "c", "no previous prompt": "p", "neither": "cp"}


class ScriptedReplies(Engine):
    """Prepares prompts as always; replies at once, with the same words."""

    without_previous = False

    async def prepare(self, messages: Any, params: SamplingParams | None = None, **options: Any) -> PreparedPrompt:
        if self.without_previous:
            options["previous"] = None
        return await super().prepare(messages, params, **options)

    def stream(self, prepared: PreparedPrompt, **_options: Any) -> Deltas:
        return Deltas(self._reply(prepared))

    async def _reply(self, prepared: PreparedPrompt) -> AsyncGenerator[Delta]:
        ids = await self.tokenize(REPLY, add_special_tokens=False)
        yield Delta("scripted", text=REPLY, token_ids=ids, prompt_tokens=prepared.num_prompt_tokens)
        yield Delta("scripted", finish_reason=FinishReason.STOP)


class NoContexts(RecentContexts):
    """Finds no context."""

    def find(self, *_: Any) -> None:
        return None


class Conversation:
    """One conversation in the database."""

    def __init__(self, services: Services, texts: list[str]) -> None:
        self._services = services
        self._texts = texts
        self._id = new_id()
        self._tip: str | None = None

    async def fill(self, tokenizer: Any, num_messages: int) -> None:
        """Writes the conversation as a server would have, reply by reply."""
        records = self._services.turns._records
        for index in range(num_messages // 2):
            new = NewTurn(
                turn_id=new_id(),
                conversation_id=self._id,
                user_message_id=new_id(),
                message_id=new_id(),
                title="A conversation" if index == 0 else None,
                parent_id=self._tip,
                parent_is_tip=True,
                text=" ".join(random.sample(self._texts, 2)),
                settings=SETTINGS,
                save_settings=True,
                model="guide",
                omitted_messages=0,
                context_length=CONTEXT_LENGTH,
            )
            await records.begin(LOCAL_USER_ID, new)
            reply = " ".join(random.sample(self._texts, 3))
            ids = tuple(tokenizer.encode(reply, add_special_tokens=False))
            outcome = TurnOutcome(text=reply, status=MessageStatus.COMPLETE, stats=None, token_ids=ids)
            await records.finish(LOCAL_USER_ID, new.turn_id, outcome)
            self._tip = new.message_id

    async def ask(self) -> float:
        """Sends a message as the page does and reads its reply; returns the seconds until it was accepted."""
        turns = self._services.turns
        where = {"conversation_id": self._id, "tip_id": self._tip, "settings": SETTINGS, "request_id": new_id()}
        text = " ".join(random.sample(self._texts, 2))
        begin = perf_counter()
        ref = await turns.start(LOCAL_USER_ID, text=text, **where)  # type: ignore[arg-type]
        took = perf_counter() - begin
        self._tip = ref.message_id
        async for _ in turns.events(LOCAL_USER_ID, ref.turn_id):
            pass
        await asyncio.sleep(0)
        return took


async def measure(folder: Path, *, lengths: list[int], chats: int, repeats: int) -> dict[str, dict[str, float]]:
    """Returns the median milliseconds of each variant, by the length of the conversations."""
    config = AutoConfig.from_pretrained(GUIDE)
    config.max_position_embeddings, config.num_hidden_layers = CONTEXT_LENGTH, 1
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(GUIDE)
    tokenizer.save_pretrained(folder / "model")
    pages = " ".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    words = re.sub(r"[`*|#\[\]()]", "", pages)
    texts = [text for text in re.split(r"(?<=[.!?])\s+", words) if 40 < len(text) < 200]
    settings = EngineSettings(_env_file=None, model=str(folder / "model"), max_model_len=CONTEXT_LENGTH, device="cpu")
    medians: dict[str, dict[str, float]] = {}
    engine = ScriptedReplies(settings)
    async with engine:
        services = await Services.open(AppSettings(_env_file=None, data_dir=folder, auto_titles=False), engine)
        turns = services.turns
        for length in lengths:
            conversations = [Conversation(services, texts) for _ in range(chats)]
            for conversation in conversations:
                await conversation.fill(tokenizer, length)
            seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
            for _ in range(repeats):
                for name, without in VARIANTS.items():  # in turn, because the conversations grow
                    recent = NoContexts() if "c" in without else RecentContexts()
                    turns._recent = turns._starts._recent = turns._turn_requests._recent = recent
                    engine.without_previous = "p" in without
                    for conversation in conversations:
                        await conversation.ask()  # fills the cache
                        seconds[name].append(await conversation.ask())
            medians[f"{length} messages"] = {name: round(1000 * median(each), 2) for name, each in seconds.items()}
        await services.close()
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[40, 400], help="messages of a conversation")
    parser.add_argument("--chats", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        medians = asyncio.run(measure(Path(folder), lengths=given.lengths, chats=given.chats, repeats=given.repeats))
    about = machine.describe()
    print(json.dumps(medians, indent=1))
    write_result({"machine": about, "milliseconds": medians}, "acceptance")


if __name__ == "__main__":
    main()
