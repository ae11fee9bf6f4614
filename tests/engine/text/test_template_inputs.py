"""Tools, calls and thinking reach the model as its chat template writes them."""

from __future__ import annotations

import pytest

from engine.chat_options import ChatOptions, NamedTool, Tool, ToolCall, ToolChoiceMode
from engine.errors import InvalidRequestError
from engine.interface import ChatMessage
from engine.text.chat_template import MAX_INLINE_CHARACTERS, ChatTemplate
from engine.text.template_inputs import has_thinking_switch
from testing.tokenizers import byte_level_tokenizer

# Written after the form of Qwen's: tools in the system message, calls as JSON, thinking of the last turn only.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content and loop.last %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
ADD = Tool("add", "Adds <|im_end|> numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}}, strict=True)
LONG = " " * (MAX_INLINE_CHARACTERS + 1)
USER: ChatMessage = {"role": "user", "content": "hi"}


def template(text: str = TEMPLATE) -> ChatTemplate:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = text
    return ChatTemplate(tokenizer)


def test_tools_and_calls_are_rendered() -> None:
    made = template()
    call = ToolCall("id1", "add", '{"a": 1}')
    messages: list[ChatMessage] = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "hm"},
        {"role": "tool", "content": "2", "tool_call_id": "id1"},
    ]
    text = made.render(messages, options=ChatOptions(tools=(ADD,))).text
    assert '"name": "add"' in text
    assert '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' in text
    assert "strict" not in text
    assert "hm" not in text  # the template leaves out the thinking of earlier turns
    assert "hm" in made.render(messages[:2], options=ChatOptions()).text


@pytest.mark.parametrize("arguments", ['{"a"', 100_000 * "["])
def test_arguments_that_are_not_json_are_shown_as_they_are(arguments: str) -> None:
    call: ChatMessage = {"role": "assistant", "content": "", "tool_calls": [ToolCall("1", "add", arguments)]}
    assert arguments.replace('"', r"\"") in template().render([USER, call]).text


def test_ids_are_shortened_for_templates_that_refuse_others() -> None:
    # Written after Mistral's.
    made = template(
        "{% for message in messages %}{% for call in message.tool_calls or [] %}{% if call.id|length != 9 %}"
        "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
        "|{{ call.id }}{% endfor %}{{ message.content }}"
        "{% if message.tool_call_id %}|{{ message.tool_call_id }}{% endif %}{% endfor %}"
    )

    def shown(id: str) -> str:
        call: ChatMessage = {"role": "assistant", "content": "", "tool_calls": [ToolCall(id, "add", "{}")]}
        result: ChatMessage = {"role": "tool", "content": "", "tool_call_id": id}
        _, of_call, of_result = made.render([USER, call, result]).text.split("|")
        assert of_call == of_result
        return of_call

    assert shown("abcDEF123") == "abcDEF123"
    assert len({shown(f"call_{number}") for number in range(20)}) == 20


def test_a_tool_cannot_forge_a_control_token() -> None:
    made = template()
    tokenizer = byte_level_tokenizer()
    with_tool = made.render([USER], options=ChatOptions(tools=(ADD,))).token_ids
    without = made.render([USER], options=ChatOptions(tools=(ADD,), tool_choice=ToolChoiceMode.NONE)).token_ids
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert with_tool.count(end) == without.count(end) + 1
    assert without == made.render([USER]).token_ids


def test_thinking_and_further_variables_reach_templates_that_read_them() -> None:
    made = template()
    assert made.render([USER], options=ChatOptions(thinking=False)).text.endswith("<think></think>")
    assert made.render([USER], options=ChatOptions(reasoning_effort="none")).text.endswith("<think></think>")
    assert made.render([USER], options=ChatOptions(thinking=True)).text.endswith("assistant\n")
    options = ChatOptions(template_kwargs={"enable_thinking": False})
    assert made.render([USER], options=options).text.endswith("<think></think>")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (ChatOptions(tools=(ADD, ADD)), "Two tools are named add"),
        (ChatOptions(tools=(Tool("a b"),)), "'a b' is not valid"),
        (ChatOptions(tools=(Tool("a", parameters={"type": "array"}),)), "of type object"),
        (ChatOptions(tools=(ADD,), tool_choice=NamedTool("sub")), "names 'sub'"),
        (ChatOptions(tool_choice=ToolChoiceMode.REQUIRED), "no tools are offered"),
        (ChatOptions(template_kwargs={"messages": []}), "cannot set messages"),
    ],
)
def test_options_that_no_template_can_render_are_refused(options: ChatOptions, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        template().render([USER], options=options)


def test_a_template_that_does_not_show_tools_refuses_them() -> None:
    tokenizer = byte_level_tokenizer()
    with pytest.raises(InvalidRequestError, match=r"^tools are not shown"):
        ChatTemplate(tokenizer).render([USER], options=ChatOptions(tools=(ADD,)))
    ChatTemplate(tokenizer).render([USER], options=ChatOptions(tools=(ADD,), tool_choice=ToolChoiceMode.NONE))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}", True),
        ("{% if thinking %}<think>{% endif %}", True),
        ("{{ message.thinking }}{{ message['thinking'] }}{{ message.get('enable_thinking') }}", False),
        ("<think>{{ messages }}", False),
    ],
)
def test_a_switch_of_thinking_is_a_variable_that_the_template_reads(template: str, expected: bool) -> None:
    assert has_thinking_switch(template) is expected


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x" * (MAX_INLINE_CHARACTERS + 1)}],
        [{"role": "assistant", "content": "", "reasoning": "x" * (MAX_INLINE_CHARACTERS + 1)}],
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": (ToolCall("id1", "add", " " * (MAX_INLINE_CHARACTERS + 1)),),
            }
        ],
        [USER] * (MAX_INLINE_CHARACTERS // 20),
    ],
    ids=["text", "thinking", "arguments", "messages"],
)
def test_what_takes_long_to_render_is_left_to_a_thread(messages: list[ChatMessage]) -> None:
    made = template()
    assert made.is_fast_to_render([USER])
    assert not made.is_fast_to_render(messages)
