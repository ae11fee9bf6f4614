"""Builds the guide from its data: tokenizer, weights, draft model. ``make guide`` runs this; README.md has its cost.

Every seed gives one model (on one machine, with one number of threads). Nothing in the target folder is replaced
before the training has finished; checkpoints and the loss curve go to ``build/guide``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from anywhere

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from models.guide import curve
from models.guide import tokenizer as pieces
from models.guide.average import mean
from models.guide.dialogues import Dialogues
from models.guide.packing import IGNORED, Batch, Packer
from models.guide.recipe import CONTEXT, DRAFT, GUIDE, Recipe
from models.guide.topics import GuideData, load
from models.guide.workers import Workers

SINGLE_PROCESS = Workers()
HERE = Path(__file__).resolve().parent
PLOT_EVERY = 10  # steps
SIMILAR = 128


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


class Progress(NamedTuple):
    """Where a training stands after a step."""

    done: float  #: share of the training that is over, 1 at last
    leg_ends: bool  #: the learning rate has come down to nothing: what is there now is as good as it gets by itself


class Learner(nn.Module):
    """The model, and a second head that is thrown away after the training.

    Where a reply begins, ``topic_head`` has to name its topic. A reply's words tell that too, but one by one, and many
    topics share their first; so the model learns to know what it will say before it says it.
    """

    def __init__(self, model: LlamaForCausalLM, topics: int) -> None:
        super().__init__()
        self.model = model
        self.topic_head = nn.Linear(model.config.hidden_size, topics, bias=False)
        # From zero it pushes nothing before it has learned something: a model that goes on keeps what it knows.
        nn.init.zeros_(self.topic_head.weight)


def build_optimizers(learner: Learner, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding, the heads and the norms."""
    named = list(learner.named_parameters())
    inside = [p for n, p in named if p.ndim == 2 and "layers" in n]
    rest = [p for n, p in named if p.ndim != 2 or "layers" not in n]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    return [
        torch.optim.Muon(inside, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_at(leg: int, step: int, over: float, recipe: Recipe) -> float:
    """Share of the full learning rate in a leg's step, counted from 0, where ``over`` of the leg is over.

    A short climb, a plain, and in the last part a straight line down to nothing.
    """
    height = recipe.later_legs if leg else 1.0
    return height * min((step + 1) / recipe.warmup_steps, 1.0, (1 - over) / recipe.falling)


def learned_positions(labels: Tensor) -> Tensor:
    """Where in the flattened ``labels`` (int64 ``[rows, length]``) something is learned, int64.

    Filled up to a multiple of ``SIMILAR`` with the first position, where nothing ever is: oneDNN keeps a kernel for
    each size it meets, and a thousand of them took four gigabytes.
    """
    places = (labels.flatten() != IGNORED).nonzero().squeeze(1)
    return torch.cat([places, places.new_zeros(-len(places) % SIMILAR)])


def make_summed_losses(learner: Learner, compiled: bool) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """What computes the losses of a batch, of its tokens and of its topics, each summed over what is learned in it."""
    model = learner.model
    device = model.device
    # Where a processor cannot multiply bf16 by itself, that is slower than float32.
    bf16 = device.type != "cpu" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    # On short rows, PyTorch's fused attention takes a third of a step on a processor: its backward pass is slow there.
    model.set_attn_implementation("eager")
    body: Callable[..., Any] = torch.compile(model.model, dynamic=False) if compiled else model.model

    def losses(batch: Batch) -> tuple[Tensor, Tensor]:
        tokens, labels, topics, positions, mask = (
            part.to(device) for part in (batch.tokens, batch.labels, batch.topics, batch.positions, batch.mask)
        )
        # The other positions need no scores, and scores are a fifth of the work.
        learned, begins = learned_positions(labels), learned_positions(topics)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            hidden = body(
                input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False
            ).last_hidden_state.flatten(0, 1)
            scores, names = model.lm_head(hidden[learned]), learner.topic_head(hidden[begins])
        return (
            cross_entropy(scores.float(), labels.flatten()[learned], reduction="sum", ignore_index=IGNORED),
            cross_entropy(names.float(), topics.flatten()[begins], reduction="sum", ignore_index=IGNORED),
        )

    return losses


def train(
    learner: Learner,
    packer: Packer,
    recipe: Recipe,
    log: Path,
    compiled: bool,
    workers: Workers = SINGLE_PROCESS,
    minutes: float | None = None,
) -> Iterator[Progress]:
    """Train in place; yields after each step. Losses go to ``log`` (CSV).

    The training takes the recipe's steps, or, if they are given, so many ``minutes``; then the clock decides what comes
    out, and a seed gives no model twice.
    """
    optimizers = build_optimizers(learner, recipe)
    losses_of = make_summed_losses(learner, compiled)
    learner.train()
    smooth: float | None = None
    with log.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("step", "tokens", "seconds", "loss"))
        started = time.monotonic()
        seen = 0
        done = 0.0
        leg = began = 0
        total = None if minutes else recipe.steps
        bar = tqdm(
            unit="step", desc="weights", dynamic_ncols=True, mininterval=1, total=total, disable=workers.rank > 0
        )
        for step in itertools.count():
            over = recipe.leg_at(done)[1]
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.learning_rate * rate_at(leg, step - began, over, recipe)
            batches = packer.step(step)
            learned = sum(int((batch.labels != IGNORED).sum()) for batch in batches)
            value = 0.0
            for batch in batches:
                of_tokens, of_topics = losses_of(batch)
                ((of_tokens + recipe.topic_weight * of_topics) / learned).backward()
                value += of_tokens.item() / learned
            workers.average_gradients(learner)
            torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if value != value:
                raise SystemExit(f"The loss is not a number at step {step}; lower the learning rate.")
            seen += recipe.tokens_per_step * workers.count
            seconds = time.monotonic() - started
            smooth = value if smooth is None else 0.9 * smooth + 0.1 * value
            bar.update()
            bar.set_postfix(loss=f"{smooth:.3f}", tok_s=f"{seen / seconds:.0f}")
            rows.writerow((step + 1, seen, round(seconds, 1), round(value, 4)))
            file.flush()
            # One process's clock is all processes' clock, or one would stop while another waits for it.
            done = workers.broadcast(min(1.0, seconds / 60 / minutes)) if minutes else (step + 1) / recipe.steps
            next_leg = recipe.leg_at(done)[0]
            yield Progress(done, done == 1 or next_leg > leg)
            if done == 1:
                return
            if next_leg > leg:
                leg, began = next_leg, step + 1


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


def has_compiler() -> bool:
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where models are made: a folder for checkpoints and the curve, and one that gets what came of it."""

    data: GuideData
    work: Path
    out: Path
    save_every: int
    compiled: bool
    workers: Workers
    minutes: float | None

    def tokenizer(self, start: Path | None, vocabulary: int) -> PreTrainedTokenizerFast:
        """That of the folder ``start``, or a new one."""
        self.work.mkdir(parents=True, exist_ok=True)
        known = (start / "tokenizer.model").read_bytes() if start else pieces.train(self.data.texts(), vocabulary)
        return pieces.save(known, self.work, CONTEXT)

    def make(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
        """Train ``model`` and put it into ``out``, which is left as it is until then. The first process writes."""
        size = sum(p.numel() for p in model.parameters())
        tokens = recipe.steps * recipe.tokens_per_step * self.workers.count
        print(f"{size / 1e6:.2f} M parameters; {tokens / 1e6:.1f} M tokens, {6 * size * tokens:.1e} FLOP to train")
        log, picture = self.work / "loss.csv", self.work / "loss.svg"
        print(f"The loss is drawn while it falls: {picture.absolute().as_uri()}")
        own = replace(recipe, seed=recipe.seed + 1000 * self.workers.rank)
        packer = Packer(Dialogues(self.data), tokenizer, own)
        learner = Learner(model, len(self.data.topics)).to("cuda" if torch.cuda.is_available() else "cpu")
        training = train(learner, packer, recipe, log, self.compiled, self.workers, self.minutes)
        ends: list[dict[str, Tensor]] = []
        for step, (done, leg_ends) in enumerate(training, 1):
            if self.workers.rank:
                continue
            if step % PLOT_EVERY == 0 or done == 1:
                curve.draw(log, picture)
            if step % self.save_every == 0:
                save_weights(model, tokenizer, self.work)
            if leg_ends:
                ends.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
                save_weights(model, tokenizer, self.work / f"leg-{len(ends)}")
        if self.workers.rank == 0:
            model.load_state_dict(mean(ends))
            save_weights(model, tokenizer, self.work)
            self.publish()
        self.workers.wait()

    def publish(self) -> None:
        """Copy the model and its curve to ``out``."""
        self.out.mkdir(parents=True, exist_ok=True)
        for file in sorted(self.work.iterdir()):
            if file.is_file() and file.suffix != ".csv":
                shutil.copyfile(file, self.out / file.name)
        print(f"It is in {self.out}.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the guide and its draft model from models/guide/data.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write the guide to, with draft/ in it")
    parser.add_argument("--work", type=Path, default=Path("build/guide"), help="folder for checkpoints and the loss")
    parser.add_argument("--start", type=Path, default=None, help="go on from this folder's weights and tokenizer")
    parser.add_argument("--only-draft", action="store_true", help="train only the draft model, for the guide in --out")
    parser.add_argument("--steps", type=int, default=GUIDE.steps, help="of the guide's training")
    parser.add_argument("--draft-steps", type=int, default=DRAFT.steps)
    parser.add_argument("--minutes", type=float, help="let the clock end the guide's training, not its steps")
    parser.add_argument("--learning-rate", type=float, default=GUIDE.learning_rate, help="of the guide")
    parser.add_argument(
        "--opening-rows", type=int, default=GUIDE.opening_rows,
        help="rows of single questions in a step of the guide; with --start, fewer leave more time for new talks",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=GUIDE.seed)
    parser.add_argument("--threads", type=int, default=None, help="processor threads; default: all cores")
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=has_compiler())
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    data = load()
    print(f"data: {len(data.topics)} topics, {sum(topic.num_questions for topic in data.topics):,} questions")
    workers = Workers.join()
    work: Path = options.work / f"worker-{workers.rank}" if workers.rank else options.work
    shop = Workshop(data, work, options.out, options.save_every, options.compile, workers, options.minutes)
    if not options.only_draft:
        recipe = replace(
            GUIDE,
            steps=options.steps,
            learning_rate=options.learning_rate,
            seed=options.seed,
            opening_rows=options.opening_rows,
        )
        tokenizer = shop.tokenizer(options.start, recipe.vocabulary)
        torch.manual_seed(options.seed)
        if options.start:  # after adding to the data, a short training on top of an earlier one is enough
            guide = LlamaForCausalLM.from_pretrained(options.start, dtype=torch.float32)
        else:
            guide = build_model(recipe, tokenizer)
        shop.make(guide, tokenizer, recipe)
    recipe = replace(DRAFT, steps=options.draft_steps, seed=options.seed)
    shop = replace(shop, work=work / "draft", out=options.out / "draft", minutes=None)
    tokenizer = shop.tokenizer(options.out, recipe.vocabulary)
    shop.make(build_model(recipe, tokenizer), tokenizer, recipe)
    workers.leave()


if __name__ == "__main__":
    main()
