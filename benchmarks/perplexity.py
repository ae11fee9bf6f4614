"""Measures how number formats affect the guide's predictions of answers to held-out questions.

Reports the perplexity over the answers' tokens, each answer after its question in the guide's own chat template, and
how often the most likely token differs from float32.

    .venv/bin/python -m benchmarks.perplexity [--every 10]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks import machine
from benchmarks.result_files import RESULTS
from engine import EngineSettings
from engine.execution.load import load_model
from engine.model.attention_hook import LayerProbe
from engine.model.loaded_model import LoadedModel
from models.guide.topics import load

ROOT = Path(__file__).resolve().parent.parent
FORMATS = (("float32", "none"), ("bfloat16", "none"), ("float32", "int8"), ("bfloat16", "int8"), ("bfloat16", "int4"))


@dataclass(frozen=True, slots=True)
class Predicted:
    """A model's prediction quality on some texts."""

    num_tokens: int
    perplexity: float
    other_choice: float  #: share of tokens where the most likely token differs from the reference's


def held_out_dialogues() -> list[list[dict[str, str]]]:
    """Returns each held-out question with its topic's first answer."""
    return [
        [{"role": "user", "content": question}, {"role": "assistant", "content": topic.answers[0]}]
        for topic in load(ROOT / "models/guide/data").topics
        for question in topic.held_out
    ]


def load_guide(dtype: str, quantization: str, device: str = "cpu") -> LoadedModel:
    """Loads the guide into transformers' module, whose logits of a whole dialogue can be had at once."""
    settings = EngineSettings.model_validate(
        {"model": "models/guide", "device": device, "dtype": dtype, "quantization": quantization, "native": False}
    )
    return load_model(settings, lambda _stage, _fraction: None)


def choices(model: LoadedModel, dialogues: Iterable[Sequence[dict[str, str]]]) -> tuple[Tensor, Tensor]:
    """Returns, for every token of every answer, its log-probability and the model's most likely token."""
    scores, chosen = [], []
    for messages in dialogues:
        ids = model.tokenizer.apply_chat_template(messages, return_tensors="pt").input_ids
        begins = model.tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, return_tensors="pt"
        ).input_ids.shape[1]
        length = ids.shape[1]
        rows = torch.arange(begins - 1, length - 1)
        with torch.inference_mode():
            positions = torch.arange(length, device=model.device)[None]
            logits = model.logits(ids.to(model.device), positions, rows.to(model.device), LayerProbe()).float().cpu()
        wanted = ids[0, begins:]
        scores.append(logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0])
        chosen.append(logits.argmax(-1))
    return torch.cat(scores), torch.cat(chosen)


def compare(model: LoadedModel, dialogues: Iterable[Sequence[dict[str, str]]], reference: Tensor) -> Predicted:
    scores, chosen = choices(model, dialogues)
    return Predicted(
        len(scores), math.exp(-scores.double().mean().item()), (chosen != reference).double().mean().item()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="use only every Nth question")
    options = parser.parse_args()
    if options.every < 1:
        parser.error("--every must be at least 1.")
    dialogues = held_out_dialogues()[:: options.every]
    rows = []
    reference: Tensor | None = None
    for dtype, quantization in FORMATS:
        model = load_guide(dtype, quantization)
        asked = tqdm(dialogues, desc=f"{dtype}, {quantization}", unit=" answers")
        if reference is None:
            reference = choices(model, dialogues)[1]
        found = compare(model, asked, reference)
        rows.append({"dtype": dtype, "quantization": quantization, **asdict(found)})
    print(f"{len(dialogues)} answers, {rows[0]['num_tokens']:,} tokens")
    print(f"{'weights':10} {'quantization':13} {'perplexity':>10} {'another token':>14}")
    for row in rows:
        print(f"{row['dtype']:10} {row['quantization']:13} {row['perplexity']:10.4f} {row['other_choice']:13.2%}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{datetime.now(UTC):%Y-%m-%d}-perplexity.json"
    file.write_text(json.dumps({"machine": machine.describe(), "every": options.every, "rows": rows}, indent=1) + "\n")
    print(file)


if __name__ == "__main__":
    main()
