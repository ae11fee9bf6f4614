"""A reply that goes on from where it was cut: the joint shows no seam."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import ChatMessage, Engine, EngineSettings, FinishReason, InvalidRequestError, SamplingParams
from engine.text.chat_template import ChatTemplate
from engine.text.detokenizer import REPLACEMENT, Detokenizer
from testing.tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

GUIDE = Path(__file__).parents[3] / "models" / "guide"
TOKENIZERS = {"byte-level": byte_level_tokenizer(), "sentencepiece": sentencepiece_tokenizer()}
GREEDY = SamplingParams(temperature=0.0, max_tokens=80)


async def reply(engine: Engine, messages: list[ChatMessage], params: SamplingParams) -> tuple[str, list[int], int]:
    """Its text, its token ids, and how many tokens of the prompt were cached."""
    text, token_ids, cached = "", list[int](), 0
    async for delta in engine.chat(messages, params):
        text += delta.text
        token_ids += delta.token_ids
        cached += delta.cached_prompt_tokens or 0
    return text, token_ids, cached


@pytest.mark.slow
async def test_a_reply_cut_anywhere_goes_on_as_if_it_had_not_been() -> None:
    settings = EngineSettings(model=str(GUIDE), device="cpu", dtype="float32")
    async with Engine(settings) as engine:
        question: ChatMessage = {"role": "user", "content": "What does top-p do?"}
        whole, ids, _ = await reply(engine, [question], GREEDY)
        assert len(ids) > 20
        for cut in range(1, len(ids) - 1, 7):
            begun, begun_ids, _ = await reply(engine, [question], SamplingParams(temperature=0.0, max_tokens=cut))
            kept = await engine.reply_tokens(begun, begun_ids)
            unfinished: ChatMessage = {
                "role": "assistant",
                "content": begun,
                "token_ids": kept,
                "unfinished": True,
            }
            rest, rest_ids, cached = await reply(engine, [question, unfinished], GREEDY)
            assert begun + rest == whole, f"cut after {cut} tokens"
            assert [*kept, *rest_ids] == ids
            assert cached >= cut - 1, "what was computed for the first part is computed again"
            # Read again from its text it goes on too, if not always in the same words.
            again, _ids, _ = await reply(engine, [question, {**unfinished, "token_ids": ()}], GREEDY)
            assert again
        assert (await engine.prepare([question, unfinished])).num_prompt_tokens > (
            await engine.prepare([question])
        ).num_prompt_tokens


@pytest.mark.parametrize("name", list(TOKENIZERS))
@given(text=st.text(alphabet="ab c\n.é日😀", min_size=1, max_size=30), data=st.data())
@example(text=" a  b", data=None)
def test_the_text_of_the_rest_fits_the_text_before(name: str, text: str, data: st.DataObject | None) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    cuts = range(1, len(ids)) if data is None else [data.draw(st.integers(0, len(ids)))]
    for cut in cuts:
        first = Detokenizer(tokenizer)
        before = first.push(ids[:cut]).text
        if REPLACEMENT in first.finish().text:
            continue  # such bytes are not kept with a reply
        second = Detokenizer(tokenizer, partial_reply=ids[:cut])
        after = "".join(second.push([token]).text for token in ids[cut:]) + second.finish().text
        expected = Detokenizer(tokenizer)
        assert before + after == expected.push(ids).text + expected.finish().text


@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_what_looks_like_a_control_token_in_a_reply_stays_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    special = tokenizer.all_special_tokens[0]
    ids = ChatTemplate(tokenizer).encode_partial_reply({"role": "assistant", "content": f"he wrote {special} there"})
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert special in tokenizer.decode(ids)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hi", "unfinished": True}],
        [{"role": "assistant", "content": "hi", "unfinished": True}, {"role": "user", "content": "and?"}],
    ],
)
async def test_only_a_reply_at_the_end_can_be_unfinished(messages: list[ChatMessage]) -> None:
    async with Engine(EngineSettings(model=str(GUIDE), device="cpu")) as engine:
        with pytest.raises(InvalidRequestError, match="cannot be unfinished"):
            await engine.prepare(messages)


async def test_a_conversation_of_an_unfinished_reply_alone_is_refused() -> None:
    async with Engine(EngineSettings(model=str(GUIDE), device="cpu")) as engine:
        with pytest.raises(InvalidRequestError, match="at least one message"):
            await engine.prepare([{"role": "assistant", "content": "hi", "unfinished": True}])


async def test_the_reply_ends_at_its_end_and_at_its_length() -> None:
    async with Engine(EngineSettings(model=str(GUIDE), device="cpu")) as engine:
        messages: list[ChatMessage] = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hello", "unfinished": True},
        ]
        reasons = []
        for most in (2, 200):
            async for delta in engine.chat(messages, SamplingParams(temperature=0.0, max_tokens=most)):
                if delta.finish_reason is not None:
                    reasons.append(delta.finish_reason)
        assert reasons == [FinishReason.LENGTH, FinishReason.STOP]
