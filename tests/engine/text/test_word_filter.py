"""Forbidden words never appear, and nothing else is banned: masks against the detokenizer itself, and replies."""

from __future__ import annotations

import asyncio
import random
import unicodedata
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from engine import Delta, Engine, EngineError, EngineSettings, InvalidRequestError, ModelLoadError, SamplingParams
from engine.errors import EveryTokenBannedError
from engine.runtime.engine_core import EngineCore
from engine.sampling.sampler import Sampler, SamplingRow
from engine.text.detokenizer import REPLACEMENT, IncrementalDetokenizer
from engine.text.folded_vocabulary import FoldedVocabulary
from engine.text.vocabulary import Vocabulary
from engine.text.word_filter import ForbiddenWords, Position, WordBan, WordLists, read_word_list
from engine.text.word_matching import fold
from testing.models import make_model
from testing.tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

DEFAULTS = SamplingParams.from_generation_config(GenerationConfig())

# Short, so that they are met often; phrases, beginnings of one another, accents, and scripts without spaces.
WORDS = ["a", "the", "s", "do not", "ing", "12", "é", "öl", "ha", "hat", "日", "本語", "c++", "и", "\N{THUMBS UP SIGN}"]
UNSPACED = {"日", "本語", "c++", "\N{THUMBS UP SIGN}"}


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece", "guide"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    match request.param:
        case "byte_level":
            return byte_level_tokenizer()
        case "sentencepiece":
            return sentencepiece_tokenizer()
        case _:
            return AutoTokenizer.from_pretrained(Path(__file__).parents[3] / "models" / "guide")


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Any) -> FoldedVocabulary:
    return FoldedVocabulary(Vocabulary(tokenizer, len(tokenizer) + 7))


def has_word(text: str, words: Sequence[str], *, ended: bool) -> bool:
    """By hand. A word at the very end counts when the text has ``ended``, or when anything may follow it."""

    def inside(character: str) -> bool:
        return character.isalnum() or unicodedata.category(character)[0] == "M"

    text = fold(text)
    for word in words:
        free = word in UNSPACED
        folded = fold(word)
        for start in range(len(text) - len(folded) + 1):
            end = start + len(folded)
            if text[start:end] != folded:
                continue
            if start > 0 and inside(text[start - 1]) and not (free and word != "c++"):
                continue
            if free or (end < len(text) and not inside(text[end])) or (end == len(text) and ended):
                return True
    return False


def shown(tokenizer: Any, token_ids: Sequence[int]) -> tuple[str, str]:
    """The text that is certain behind these tokens, and what would come if they ended here."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    certain = "".join(detokenizer.push([token]) for token in token_ids)
    return certain, detokenizer.finish()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(4, 16))])
def test_exactly_the_tokens_that_bring_a_word_are_banned(
    tokenizer: Any, vocabulary: FoldedVocabulary, seed: int
) -> None:
    """Behind random beginnings, for every token of the vocabulary, what the detokenizer makes of it decides."""
    chance = random.Random(seed)
    # Of the long vocabulary a part, and all the single bytes and short tokens that make words.
    size = len(tokenizer)
    tokens = range(size) if size < 500 else sorted({*range(300), *chance.sample(range(size), 300)})
    words = ForbiddenWords(["a", "s", "the", *chance.sample(WORDS, 6)], vocabulary)
    chosen = [word for word in WORDS if fold(word) in words.matcher.words]
    exact = pending = 0
    for _ in range(2):
        reply: list[int] = []
        position = words.start
        noisy = False  # behind byte tokens that are no text, caution bans more
        for _ in range(12):
            for last in (False, True):
                banned = set(words.banned(position, tokens_left=0 if last else 9).tolist())
                for token in tokens:
                    certain, rest = shown(tokenizer, [*reply, token])
                    brings = has_word(certain, chosen, ended=False)
                    if last:
                        brings = has_word(certain + rest, chosen, ended=True)
                    case = (tokenizer.decode(reply), tokenizer.convert_ids_to_tokens(token), last)
                    assert token in banned or not brings, case
                    if not (noisy or words._after(position, token).broken) and (last or not rest):
                        exact += 1
                        assert token not in banned or brings, case
            pending += words.is_complete(position)
            assert (
                words.is_complete(position) == has_word("".join(shown(tokenizer, reply)), chosen, ended=True) or noisy
            )
            allowed = sorted(set(tokens) - set(words.banned(position, tokens_left=9).tolist()))
            reply.append(chance.choice(_next_of_words(words, vocabulary, position, allowed, chance) or allowed))
            position = words.after(position, reply[-1])
            noisy = noisy or position.broken
    assert exact > 2_000
    assert pending > 0, "no beginning ended with a word that could go on"


def _next_of_words(
    words: ForbiddenWords, vocabulary: FoldedVocabulary, position: Position, allowed: list[int], chance: random.Random
) -> list[int]:
    """Mostly tokens that go on with a word that has begun, or that begin one behind a space; else none."""
    rests = {rest for rest, _ in words.matcher.remainders(position.state)} or words.matcher.words
    going_on = [
        token
        for token in allowed
        if (text := fold(vocabulary.data(token).decode(errors="ignore")).lstrip(" "))
        and any(rest.startswith(text) for rest in rests)
    ]
    return going_on if chance.random() < 0.8 else []


@pytest.mark.slow
def test_a_reply_of_noise_never_holds_a_word(tokenizer: Any, vocabulary: FoldedVocabulary) -> None:
    """A model that finds all tokens alike, drawn with the sampler; the text is the detokenizer's."""
    words = ForbiddenWords(WORDS, vocabulary)
    eos = tokenizer.eos_token_id
    size = len(tokenizer) + 7
    rows, bans = [], []
    for seed in range(100):
        bans.append(WordBan(words, 30, frozenset([eos])))
        params = SamplingParams(logit_bias={eos: 2.0}).with_defaults(DEFAULTS)
        rows.append(SamplingRow(str(seed), params, seed=seed, token_ids=[7], num_prompt_tokens=1, bans=[bans[-1]]))
    ended: list[SamplingRow] = []
    for _ in range(30):
        if not rows:
            break
        for row, token in zip(rows, Sampler().sample(torch.zeros(len(rows), size), rows), strict=True):
            row.token_ids.append(token)  # type: ignore[attr-defined]
        ended += [row for row in rows if row.token_ids[-1] == eos]
        rows = [row for row in rows if row.token_ids[-1] != eos]
    assert rows
    assert ended
    for row in [*rows, *ended]:
        reply = [token for token in row.token_ids[1:] if token != eos]
        text = "".join(shown(tokenizer, reply))
        assert not has_word(text, WORDS, ended=True), text


def test_a_row_at_a_time_or_all_at_once(vocabulary: FoldedVocabulary) -> None:
    """A request that was put out, or forked, begins to follow its text anew."""
    words = ForbiddenWords(WORDS, vocabulary)
    chance = random.Random(1)
    ban, reply = WordBan(words, 100, frozenset()), [3, 3, 3]
    for _ in range(40):
        banned = ban.banned(reply, 3)
        assert banned.tolist() == WordBan(words, 100, frozenset()).banned(reply, 3).tolist()
        allowed = sorted(set(range(len(vocabulary.texts))) - set(banned.tolist()))
        reply.append(chance.choice(allowed))


def test_what_ends_a_reply_is_judged_by_the_text_it_leaves() -> None:
    """The token that ends it is not shown: it may be a forbidden word itself, but must not leave one at the end."""
    tokenizer = byte_level_tokenizer()
    words = ForbiddenWords(["a", "the"], FoldedVocabulary(Vocabulary(tokenizer, len(tokenizer))))
    token = {text: tokenizer.convert_tokens_to_ids(text) for text in ("a", "!", "b")}
    ban = WordBan(words, 100, frozenset([token["a"], token["!"], tokenizer.eos_token_id]))
    reply: list[int] = []
    assert not set(token.values()) & set(ban.banned(reply, 0).tolist())
    assert token["a"] in WordBan(words, 1, frozenset()).banned(reply, 0).tolist(), "the last token, and shown"
    assert token["a"] not in WordBan(words, 1, frozenset([token["a"]])).banned(reply, 0).tolist()
    reply += words_of(tokenizer, "b the")
    banned = set(ban.banned(reply, 0).tolist())
    assert {token["a"], token["!"], tokenizer.eos_token_id} <= banned
    assert token["b"] not in banned
    assert token["a"] not in WordBan(words, 100, frozenset()).banned(reply, 0).tolist()


def words_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_broken_bytes_do_not_hide_a_word() -> None:
    """Byte tokens behind an invalid one show as U+FFFD, so a word may begin behind them; after long, as themselves."""
    tokenizer = sentencepiece_tokenizer()
    words = ForbiddenWords(["the"], FoldedVocabulary(Vocabulary(tokenizer, len(tokenizer))))
    byte = {value: tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in range(256)}
    the = [tokenizer.convert_tokens_to_ids(letter) for letter in "the"]
    for run in ([0xFF, ord("x")], [0xC3, ord("x")], [0xFF] * 30 + [ord("x")]):
        position = words.start
        for token in [*(byte[value] for value in run), *the]:
            assert token not in words.banned(position, tokens_left=9).tolist()
            position = words.after(position, token)
        assert words.is_complete(position)
        assert has_word("".join(shown(tokenizer, [*(byte[v] for v in run), *the])), ["the"], ended=True)
    position = words.start
    for value in [0xFF] * 30 + list(b" the"):
        position = words.after(position, byte[value])
    assert words.is_complete(position)


def test_a_character_is_begun_only_if_it_can_become_a_letter_in_time() -> None:
    """Behind a whole word: no emoji, whose first bytes would leave nothing to go on with."""
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary(tokenizer, len(tokenizer))
    words = ForbiddenWords(["the"], FoldedVocabulary(vocabulary))
    byte = {vocabulary.data(token)[0]: token for token in range(len(tokenizer)) if len(vocabulary.data(token)) == 1}
    position = words.start
    for letter in b"the":
        position = words.after(position, byte[letter])

    def allowed(data: bytes, tokens_left: int) -> bool:
        now = position
        for value in data[:-1]:
            now = words.after(now, byte[value])
        return byte[data[-1]] not in words.banned(now, tokens_left=tokens_left).tolist()

    assert allowed(b"\xc3", 1)
    assert not allowed(b"\xc3", 0)  # the other half would come too late
    assert allowed(b"\xe6\x97", 1)
    assert not allowed(b"\xe6", 1)
    assert allowed(b"\xf0", 3)
    assert not allowed(b"\xf0", 2)
    assert not allowed(b"\xf0\x9f\x98", 9), "only emoji begin with these"
    assert not allowed(b"\xe2\x80", 9), "only punctuation begins with these"
    assert not allowed(b"\xff", 9)
    silent = tokenizer.convert_tokens_to_ids("<|im_start|>")
    half = words.after(position, byte[0xC3])
    assert silent not in words.banned(half, tokens_left=1).tolist()
    assert silent in words.banned(half, tokens_left=0).tolist()


# -- through the engine -----------------------------------------------------------------------------------

PROMPT = [70, 71, 72, 73, 74]
COMMON = ["e", "a", "t", "o", "n", "i"]


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / request.param, request.param, seed=3)


def _core(engine: Engine) -> EngineCore:
    assert engine._core is not None
    return engine._core


def settings(model: Path, **more: Any) -> EngineSettings:
    return EngineSettings(
        model=str(model), dtype="float32", max_model_len=128, num_kv_blocks=70, kv_block_size=4, max_num_seqs=8, **more
    )


async def read(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.slow
async def test_no_reply_holds_one_however_it_ends(model: Path) -> None:
    """By length, by the model's end, by a stop string that cuts a longer word, by the reader leaving."""
    async with Engine(settings(model)) as engine:
        met = 0
        free = SamplingParams(temperature=1.6, max_tokens=40, stop=["th", "in", "er"])
        for start in range(0, 24, 8):
            asked = [replace(free, seed=seed, ignore_eos=seed % 2 == 0) for seed in range(start, start + 8)]
            plain = await asyncio.gather(*(read(engine.complete(PROMPT, params)) for params in asked))
            met += sum(has_word(text(reply), COMMON, ended=True) for reply in plain)
            forbidding = [replace(params, forbidden_words=COMMON) for params in asked]
            replies = await asyncio.gather(*(read(engine.complete(PROMPT, params)) for params in forbidding))
            for reply in replies:
                for end in range(len(reply) + 1):
                    assert not has_word(text(reply[:end]), COMMON, ended=True)
            again = await asyncio.gather(*(read(engine.complete(PROMPT, params)) for params in forbidding[:2]))
            assert [text(reply) for reply in again] == [text(reply) for reply in replies[:2]]
        assert met > 2, "the words are too rare to prove anything"


async def test_every_one_of_several_replies_keeps_to_them(model: Path) -> None:
    """Forked from one prompt, each follows its own text; asking for log-probabilities changes none of them."""
    async with Engine(settings(model)) as engine:
        params = SamplingParams(temperature=1.6, max_tokens=40, seed=1, n=4, ignore_eos=True, forbidden_words=COMMON)
        texts: list[dict[int, str]] = []
        for asked in (params, replace(params, logprobs=3, prompt_logprobs=1)):
            texts.append(dict.fromkeys(range(4), ""))
            async for delta in engine.complete(PROMPT, asked):
                texts[-1][delta.index] += delta.text
                assert len(delta.logprobs) == (0 if asked.logprobs is None else len(delta.token_ids))
        assert texts[0] == texts[1]
        assert len(set(texts[0].values())) == 4
        for said in texts[0].values():
            assert len(said) > 10
            assert not has_word(said, COMMON, ended=True)


async def test_many_threads_make_one_list() -> None:
    tokenizer = byte_level_tokenizer()
    lists = WordLists(Vocabulary(tokenizer, len(tokenizer)), ["always"])
    made = await asyncio.gather(*(asyncio.to_thread(lists.get, ["one", "two"]) for _ in range(8)))
    assert all(each is made[0] for each in made)
    assert made[0] is not None
    assert made[0].matcher.words == {"always", "one", "two"}
    assert lists.get(()) is not None
    for number in range(100):
        lists.get([f"word{number}"])
    assert len(lists._compiled) <= 32
    assert WordLists(Vocabulary(tokenizer, len(tokenizer))).get(()) is None


async def test_a_reply_without_the_word_is_untouched(model: Path) -> None:
    async with Engine(settings(model)) as engine:
        for seed in range(4):
            params = SamplingParams(temperature=1.2, seed=seed, max_tokens=30, ignore_eos=True)
            plain = await read(engine.complete(PROMPT, params))
            forbidding = await read(engine.complete(PROMPT, replace(params, forbidden_words=["unheard", "of"])))
            assert tokens(plain) == tokens(forbidding) or "of" in text(plain).casefold()


@pytest.mark.slow
async def test_a_desk_forbids_for_everyone(model: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("# one on each line\n\n" + "\n".join(COMMON[:3]) + "\n", encoding="utf-8-sig")
    for setting, forbidden in ((f"@{words}", COMMON[:3]), (" e, a ,t", COMMON[:3])):
        async with Engine(settings(model, forbidden_words=setting)) as engine:
            for more in ((), COMMON[3:]):
                params = [
                    SamplingParams(temperature=1.6, max_tokens=40, seed=seed, forbidden_words=more) for seed in range(4)
                ]
                replies = await asyncio.gather(*(read(engine.complete(PROMPT, each)) for each in params))
                for reply in replies:
                    assert not has_word(text(reply), [*forbidden, *more], ended=True)


@pytest.mark.parametrize(("setting", "words"), [("@/nowhere/words", "nowhere"), ("ok,\u200b", "visible")])
async def test_a_list_that_cannot_be_used_keeps_the_engine_from_starting(model: Path, setting: str, words: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"ENGINE_FORBIDDEN_WORDS.*{words}"):
        await Engine(settings(model, forbidden_words=setting)).start()


def test_word_lists_are_read_as_written(tmp_path: Path) -> None:
    assert read_word_list("") == ()
    assert read_word_list(" one,two words ,, drei ") == ("one", "two words", "drei")


async def test_bad_words_are_never_written_with_their_tokens(model: Path) -> None:
    async with Engine(settings(model)) as engine:
        greedy = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        reply = tokens(await read(engine.complete(PROMPT, greedy)))
        tokenizer = _core(engine).model.tokenizer
        pairs = [tokenizer.decode(reply[at : at + 2]) for at in range(len(reply) - 1)]
        word = next(
            pair.strip()
            for at, pair in enumerate(pairs)
            if REPLACEMENT not in pair
            and len(pair.strip()) > 1
            and tokenizer.encode(pair.strip(), add_special_tokens=False) == reply[at : at + 2]
        )
        sequence = tokenizer.encode(word, add_special_tokens=False)
        other = tokens(await read(engine.complete(PROMPT, replace(greedy, bad_words=[word]))))
        at = next(at for at in range(len(reply)) if reply[at : at + 2] == sequence)
        assert other[: at + 1] == reply[: at + 1], "its beginning is harmless"
        assert other[at + 1] != reply[at + 1]
        assert sequence not in [other[at : at + 2] for at in range(len(other))]


async def test_when_everything_is_banned_the_request_fails_alone(model: Path) -> None:
    async with Engine(settings(model)) as engine:
        tokenizer = _core(engine).model.tokenizer
        characters = sorted(
            {tokenizer.decode([token]).strip().casefold()[:1] for token in range(len(tokenizer))} - {"", REPLACEMENT}
        )
        beside = asyncio.create_task(read(engine.complete(PROMPT, SamplingParams(max_tokens=30, ignore_eos=True))))
        everything = SamplingParams(
            max_tokens=30, temperature=0, min_tokens=30, bad_words=characters[:256], logit_bias={5: 3.0}
        )
        sampler = _core(engine).strategy.sampler.sampler
        original = sampler.sample

        def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int]:
            for row in rows:
                if row.min_tokens == 30:
                    row._bans = (_Everything(logits.shape[-1]),)
            return original(logits, rows)

        sampler.sample = sample  # type: ignore[method-assign]
        with pytest.raises(EveryTokenBannedError, match=r"all are banned.*Forbid less"):
            await read(engine.complete(PROMPT, everything))
        assert len(tokens(await beside)) == 30
        assert engine.health().ready


class _Everything:
    def __init__(self, vocab_size: int) -> None:
        self._ids = torch.arange(vocab_size).numpy()

    def banned(self, token_ids: Sequence[int], num_prompt_tokens: int) -> Any:
        return self._ids


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"forbidden_words": ["\u200b"]}, "forbidden_words.*visible"), ({"bad_words": ["\ud800"]}, "bad_words|tokenizer")],
)
async def test_words_that_cannot_be_used_are_refused(model: Path, asked: dict[str, Any], words: str) -> None:
    async with Engine(settings(model)) as engine:
        with pytest.raises((InvalidRequestError, EngineError), match=words):
            await read(engine.complete(PROMPT, SamplingParams(max_tokens=2, **asked)))
        assert engine.health().ready
