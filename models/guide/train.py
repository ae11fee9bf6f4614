"""Builds the guide from its data: tokenizer, then weights. ``make guide`` runs this; see README.md for its cost.

Every seed gives one model (on one machine, with one number of threads). Nothing in the target folder is replaced
before the training has finished; checkpoints and the loss curve go to ``build/guide``.
"""

from __future__ import annotations

import argparse
import csv
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from anywhere

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from models.guide import tokenizer as pieces
from models.guide.dialogues import Dialogues, Message
from models.guide.topics import load

HERE = Path(__file__).resolve().parent
CONTEXT = 2048
IGNORED = -100  # label of a position that is not learned


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what comes out."""

    seed: int = 0
    vocabulary: int = 3072
    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    inner: int = 768
    steps: int = 3000
    tokens_per_step: int = 2048
    row: int = 512  #: tokens of a row that conversations are packed into
    long_share: float = 0.1  #: the last part of the training, on rows as long as the context
    learning_rate: float = 3e-3
    warmup_steps: int = 40
    weight_decay: float = 0.05
    openings: float = 0.8  #: share of conversations that end with a reply's first words, which decide what it is about
    opening_tokens: int = 10
    slip: float = 0.04  #: how often a token of a question is cut in two, as a misspelt word would be


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed conversations."""

    tokens: Tensor  #: [rows, length] int64
    labels: Tensor  #: [rows, length] int64, the token that follows or ``IGNORED``
    positions: Tensor  #: [rows, length] int64, from 0 in each conversation
    mask: Tensor  #: [rows, 1, length, length] bool, causal within a conversation


class Packer:
    """Turns conversations into rows of one length; each sees only itself, from position 0 on."""

    def __init__(self, dialogues: Dialogues, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
        self._dialogues = dialogues
        self._encoder = tokenizer.backend_tokenizer
        self._recipe = recipe
        self._rng = random.Random(recipe.seed)
        self._ids = {token: tokenizer.convert_tokens_to_ids(token) for token in pieces.SPECIAL}
        self._pieces = {index: piece for piece, index in tokenizer.get_vocab().items()}
        self._pool: list[tuple[list[int], list[int]]] = []

    def batch(self, rows: int, length: int) -> Batch:
        filled = [self._row(length) for _ in range(rows)]
        tokens = torch.full((rows, length), self._ids[pieces.PAD])
        labels = torch.full((rows, length), IGNORED)
        positions = torch.zeros((rows, length), dtype=torch.long)
        owner = torch.full((rows, length), -1)
        for r, conversations in enumerate(filled):
            at = 0
            for number, (ids, wanted) in enumerate(conversations):
                end = at + len(ids)
                tokens[r, at:end] = torch.tensor(ids)
                labels[r, at:end] = torch.tensor(wanted)
                positions[r, at:end] = torch.arange(len(ids))
                owner[r, at:end] = number
                at = end
        causal = torch.ones((length, length), dtype=torch.bool).tril()
        mask = (owner[:, :, None] == owner[:, None, :]) & causal
        return Batch(tokens, labels, positions, mask[:, None])

    def encode(self, messages: list[Message], opening: bool = False) -> tuple[list[int], list[int]]:
        """Token ids and shifted labels of a conversation; only replies and their end are learned.

        Of an ``opening`` the last reply is cut after its first words.
        """
        ids, learned = [self._ids[pieces.BEGIN]], [False]
        for message in messages:
            reply = message["role"] == "assistant"
            body = self._encoder.encode(("" if reply else " ") + message["content"], add_special_tokens=False).ids
            if not reply:
                body = self._slip(body)
            ids += [self._ids[f"<|{message['role']}|>"], *body, self._ids[pieces.END]]
            learned += [False, *[reply] * (len(body) + 1)]
        if opening and (rest := len(body) + 1 - self._recipe.opening_tokens) > 0:
            ids, learned = ids[:-rest], learned[:-rest]
        labels = [token if wanted else IGNORED for token, wanted in zip(ids[1:], learned[1:], strict=True)]
        return ids, [*labels, IGNORED]

    def _slip(self, ids: list[int]) -> list[int]:
        """Cut some tokens in two: what was learned about a word should survive another spelling of it."""
        cut: list[int] = []
        for token in ids:
            piece = self._pieces[token].replace("▁", " ")
            if len(piece) > 2 and not piece.startswith("<0x") and self._rng.random() < self._recipe.slip:
                at = self._rng.randrange(1, len(piece))
                for part in (piece[:at], piece[at:]):
                    cut += self._encoder.encode(part, add_special_tokens=False).ids
            else:
                cut.append(token)
        return cut

    def _row(self, length: int) -> list[tuple[list[int], list[int]]]:
        """Fill one row from a small pool: whatever comes first, then always the longest that still fits."""
        row: list[tuple[list[int], list[int]]] = []
        free = length
        while True:
            while len(self._pool) < 48:
                self._pool.append(self._draw(length))
            fitting = [i for i, (ids, _) in enumerate(self._pool) if len(ids) <= free]
            if not fitting:
                return row
            chosen = max(fitting, key=lambda i: len(self._pool[i][0])) if row else 0
            row.append(self._pool.pop(chosen))
            free -= len(row[-1][0])

    def _draw(self, length: int) -> tuple[list[int], list[int]]:
        if self._rng.random() < self._recipe.openings:
            turns = self._rng.choice((1, 1, 1, 2))  # with fewer of two, follow-ups were forgotten
            return self.encode(self._dialogues.draw(self._rng, turns), opening=True)
        # Mostly short talks; some go on for as long as the row, so that late positions are learned as well.
        turns = self._rng.choice((1, 1, 1, 2, 2, 3, 4)) if self._rng.random() < 0.85 else length // 64
        while True:
            conversation = self.encode(self._dialogues.draw(self._rng, turns))
            if len(conversation[0]) <= length:
                return conversation
            turns = max(1, turns * 3 // 4)


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.width,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def build_optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    inside = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    return [
        torch.optim.Muon(inside, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_at(step: int, recipe: Recipe) -> float:
    """Share of the full learning rate: a short climb, then down to nothing in a straight line."""
    climb = min(recipe.warmup_steps, recipe.steps // 10 + 1)
    return min((step + 1) / climb, (recipe.steps - step) / max(1, recipe.steps - climb))


def train(model: LlamaForCausalLM, packer: Packer, recipe: Recipe, log: Path, compiled: bool) -> Iterator[int]:
    """Train in place; yields after each step, so that the caller may save. Losses go to ``log`` (CSV)."""
    optimizers = build_optimizers(model, recipe)
    bf16 = torch.cpu._is_amx_tile_supported()  # without matrix tiles, bf16 is slower than float32

    body: Callable[..., Any] = torch.compile(model.model, dynamic=False) if compiled else model.model

    def loss_of(batch: Batch) -> Tensor:
        learned = batch.labels != IGNORED  # the other positions need no scores, and scores are a fifth of the work
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            hidden = body(
                input_ids=batch.tokens, position_ids=batch.positions, attention_mask=batch.mask, use_cache=False
            ).last_hidden_state
            logits = model.lm_head(hidden[learned])
        return cross_entropy(logits.float(), batch.labels[learned])

    model.train()
    smooth: float | None = None
    with log.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("step", "tokens", "seconds", "loss"))
        started = time.monotonic()
        seen = 0
        bar = tqdm(range(recipe.steps), unit="step", desc="weights", dynamic_ncols=True, mininterval=1)
        for step in bar:
            length = CONTEXT if step >= recipe.steps * (1 - recipe.long_share) else recipe.row
            batch = packer.batch(recipe.tokens_per_step // length, length)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.learning_rate * rate_at(step, recipe)
            loss = loss_of(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            value = loss.item()
            if value != value:
                raise SystemExit(f"The loss is not a number at step {step}; lower the learning rate.")
            seen += batch.tokens.numel()
            seconds = time.monotonic() - started
            smooth = value if smooth is None else 0.9 * smooth + 0.1 * value
            bar.set_postfix(loss=f"{smooth:.3f}", tok_s=f"{seen / seconds:.0f}")
            rows.writerow((step + 1, seen, round(seconds, 1), round(value, 4)))
            file.flush()
            yield step + 1


def save_weights(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write ``config.json``, ``generation_config.json`` and bf16 ``model.safetensors`` to ``folder``."""
    weights = LlamaForCausalLM(model.config)
    weights.load_state_dict(model.state_dict())
    weights.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.6,
        top_p=0.9,
        top_k=40,
        max_new_tokens=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    weights.to(torch.bfloat16).save_pretrained(folder)


def plot(log: Path, picture: Path) -> None:
    """Draw the loss curve where matplotlib is installed; the CSV has the same numbers."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    with log.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.plot([int(row["tokens"]) / 1e6 for row in rows], [float(row["loss"]) for row in rows], linewidth=0.8)
    axes.set(xlabel="million tokens", ylabel="loss on replies", yscale="log")
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120, bbox_inches="tight")


def has_compiler() -> bool:
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


def main() -> None:
    recipe = Recipe()
    parser = argparse.ArgumentParser(description="Build the guide: tokenizer and weights from models/guide/data.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write the model to")
    parser.add_argument("--work", type=Path, default=Path("build/guide"), help="folder for checkpoints and the loss")
    parser.add_argument("--start", type=Path, default=None, help="go on from this folder's weights and tokenizer")
    parser.add_argument("--steps", type=int, default=recipe.steps)
    parser.add_argument("--learning-rate", type=float, default=recipe.learning_rate)
    parser.add_argument("--seed", type=int, default=recipe.seed)
    parser.add_argument("--threads", type=int, default=None, help="processor threads; default: all cores")
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=has_compiler())
    options = parser.parse_args()
    recipe = replace(recipe, steps=options.steps, learning_rate=options.learning_rate, seed=options.seed)
    if options.threads:
        torch.set_num_threads(options.threads)
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)

    data = load()
    print(f"data: {len(data.topics)} topics, {sum(len(t.questions) for t in data.topics):,} questions")
    if options.start:  # after adding to the data, a short training on top of an earlier one is enough
        tokenizer = pieces.save((options.start / "tokenizer.model").read_bytes(), work, CONTEXT)
        model = LlamaForCausalLM.from_pretrained(options.start, dtype=torch.float32)
    else:
        tokenizer = pieces.save(pieces.train(data.texts(), recipe.vocabulary), work, CONTEXT)
        model = build_model(recipe, tokenizer)
    size = sum(p.numel() for p in model.parameters())
    tokens = recipe.steps * recipe.tokens_per_step
    print(f"model: {size / 1e6:.2f} M parameters; {tokens / 1e6:.1f} M tokens, {6 * size * tokens:.1e} FLOP to train")

    log = work / "loss.csv"
    for step in train(model, Packer(Dialogues(data), tokenizer, recipe), recipe, log, options.compile):
        if step % options.save_every == 0 or step == recipe.steps:
            save_weights(model, tokenizer, work)
            plot(log, work / "loss.png")
    options.out.mkdir(parents=True, exist_ok=True)
    for file in sorted(work.iterdir()):
        if file.is_file() and file.suffix != ".csv":
            shutil.copyfile(file, options.out / file.name)
    print(f"The guide is in {options.out}.")


if __name__ == "__main__":
    main()
