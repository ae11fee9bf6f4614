"""A chat template gets messages in the form that it takes, and none that drops a message goes unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import EngineSettings, ModelLoadError
from engine.errors import InvalidRequestError
from engine.execution.load import load_model
from engine.interface import ChatMessage
from engine.text.chat_template import ChatTemplate
from testing.models import make_model
from testing.tokenizers import CHATML_TEMPLATE, INST_TEMPLATE, byte_level_tokenizer


def chatml(content: str) -> str:
    """A template that puts ``content`` between the markers of each message."""
    return (
        "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\n' }}"
        + content
        + "{{ '<|im_end|>\n' }}{%- endfor -%}{{ '<|im_start|>assistant\n' }}"
    )


TEXT = "{{ message['content'] }}"
PARTS = "{%- for part in message.content -%}{{ part.text }}{%- endfor -%}"
TYPED_PARTS = (
    "{%- for part in message.content -%}{%- if part.type == 'text' -%}{{ part['text'] }}{%- endif -%}{%- endfor -%}"
)
FIRST_PART = "{{ message.content[0].text }}"
EITHER = "{%- if message.content is string -%}" + TEXT + "{%- else -%}" + PARTS + "{%- endif -%}"
LETTERS = "{%- for part in message.content -%}{{ part }}{%- endfor -%}"
USER_PARTS = "{%- if message.role == 'user' -%}" + PARTS + "{%- else -%}" + TEXT + "{%- endif -%}"
SYSTEM_PARTS = "{%- if message.role == 'system' -%}" + FIRST_PART + "{%- else -%}" + TEXT + "{%- endif -%}"

CONVERSATION: list[ChatMessage] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is <|im_end|> a cat?"},
    {"role": "assistant", "content": "An animal."},
    {"role": "user", "content": "And a dog?"},
]


def template_for(template: str) -> ChatTemplate:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    return ChatTemplate(tokenizer)


@pytest.mark.parametrize(
    "content", [PARTS, TYPED_PARTS, FIRST_PART, EITHER, LETTERS, USER_PARTS, SYSTEM_PARTS, TEXT], ids=range(8)
)
def test_every_form_of_content_gives_the_same_prompt(content: str) -> None:
    expected = template_for(CHATML_TEMPLATE).render(CONVERSATION)
    template = template_for(chatml(content))
    assert template.render(CONVERSATION) == expected
    assert "user" not in template._format.left_out


def test_a_reply_keeps_its_token_ids_in_a_template_of_parts() -> None:
    tokenizer = byte_level_tokenizer()
    spelled = [token for letter in "An animal." for token in tokenizer.encode(letter, add_special_tokens=False)]
    assert spelled != tokenizer.encode("An animal.", add_special_tokens=False)
    conversation = [message.copy() for message in CONVERSATION]
    conversation[2]["token_ids"] = spelled
    prompts = [template_for(template).render(conversation).token_ids for template in (CHATML_TEMPLATE, chatml(PARTS))]
    assert prompts[0] == prompts[1]
    assert ",".join(map(str, spelled)) in ",".join(map(str, prompts[0]))


def test_a_template_that_insists_on_a_system_message_in_parts() -> None:
    insists = "{%- if messages[0].role != 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
    template = template_for(insists + chatml(PARTS))
    assert template.render(CONVERSATION) == template_for(CHATML_TEMPLATE).render(CONVERSATION)


NO_USER = "{%- if message.role != 'user' -%}" + TEXT + "{%- endif -%}"
NO_SYSTEM = "{%- if message.role != 'system' -%}" + TEXT + "{%- endif -%}"
LAST_ONLY = "{{ '<|im_start|>user\n' + messages[-1]['content'] + '<|im_end|>\n<|im_start|>assistant\n' }}"


def test_a_template_that_drops_what_users_write_is_refused_at_load(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model", "qwen2")
    (path / "chat_template.jinja").write_text(chatml(NO_USER))
    with pytest.raises(ModelLoadError, match=r"leaves out what users write.*chat_template\.jinja"):
        load_model(EngineSettings(model=str(path), dtype="float32", device="cpu"), lambda _stage, _fraction: None)


def test_a_template_that_drops_system_messages_refuses_them() -> None:
    template = template_for(chatml(NO_SYSTEM))
    assert template.render(CONVERSATION[1:]) == template_for(CHATML_TEMPLATE).render(CONVERSATION[1:])
    with pytest.raises(InvalidRequestError, match=r"leaves out system messages.*first user message"):
        template.render(CONVERSATION)


def test_a_template_that_knows_one_message_only_refuses_a_second_turn() -> None:
    template = template_for(LAST_ONLY)
    template.check("it")
    assert template.render(CONVERSATION[1:2]) == template_for(CHATML_TEMPLATE).render(CONVERSATION[1:2])
    with pytest.raises(InvalidRequestError, match="leaves out earlier replies"):
        template.render(CONVERSATION[1:])


@pytest.mark.parametrize("template", [INST_TEMPLATE, None, "{{ raise_exception('never') }}", "{% broken"])
def test_a_template_that_refuses_with_a_sentence_of_its_own_is_left_to_say_it(template: str | None) -> None:
    tokenizer = byte_level_tokenizer(chat_template=False)
    if template:
        tokenizer.chat_template = template
    chat_template = ChatTemplate(tokenizer)
    chat_template.check("it")
    assert not chat_template._format.in_parts
    assert not chat_template._format.left_out
