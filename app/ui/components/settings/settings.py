"""The settings of a conversation: sampling parameters and system prompt, as Gradio's own controls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import gradio as gr
from gradio.components import Component

from app.domain.chat_settings import CHAT_PARAMETERS
from app.domain.presets import PRESET_PARAMETERS, PRESETS
from app.ui.client_events import call, on_client, on_server
from engine import Kind, Parameter

#: Returns a system prompt as the page's script shows it (``PromptOptions`` in ``shared/page_options.d.ts``), or None.
FindPrompt = Callable[[str], Awaitable[Mapping[str, Any] | None]]

#: What the dropdown shows when no prompt is named. The script knows what they mean, so nothing is asked for them.
_NO_PROMPTS = frozenset({"none", "own"})
_MAX_NAME_CHARS = 255
OWN_PRESET = "own:"  #: begins the value of a preset that the user has saved; ``settings_rules.js`` knows it too

_ADVANCED = """
<button type="button" class="dm-advanced-toggle" aria-expanded="false">
  <span class="dm-icon dm-icon-next"></span><span>Advanced</span><span class="dm-advanced-changed"></span>
</button>
"""


class Settings:
    """The controls of a conversation's settings, added to the current Blocks context: native sliders, numbers, texts.

    ``controls`` are the components by the name of their field in ``ChatSettings``; give ``list(controls.values())`` to
    a listener as its inputs. Choosing a preset sets the sliders, by a listener in Python. In the chat page, its script
    keeps the settings with the conversation (``settings.js``), and shows the system prompt that is chosen. That script
    drives one panel; without it, an app may have several, and the presets of each set its own sliders.
    """

    def __init__(
        self,
        defaults: Callable[[], Mapping[str, float]] | None = None,
        find_prompt: FindPrompt | None = None,
    ) -> None:
        """Args:
        defaults: returns the model's defaults of what presets set, by the parameters' names, for what a preset leaves
            at them. It is called per choice: another model may have been loaded. Without it, a slider's lower end.
        find_prompt: returns a system prompt by its name, or None if there is no such prompt. It is called per choice:
            the prompt may have been changed. Without it, no system prompt can be chosen.
        """
        gr.HTML(
            '<h2 class="dm-settings-title">Settings</h2>'
            '<button type="button" class="dm-icon-button dm-close-settings" aria-label="Close settings">'
            '<span class="dm-icon dm-icon-close"></span></button>',
            elem_classes="dm-settings-head",
            apply_default_css=False,
            js_on_load=None,
        )
        gr.HTML(
            '<p class="dm-settings-note" role="status"></p>',
            elem_classes="dm-settings-note-frame",
            apply_default_css=False,
            js_on_load=None,
        )
        self.controls = _controls()
        reset = gr.Button("Reset to the model's defaults", elem_classes="dm-reset")
        # Hidden, clicked by settings.js: loads the open conversation's settings into the controls.
        show = gr.Button("Show settings", elem_classes="dm-show-settings", visible="hidden")
        # Hidden: brings the script what the listener has found. Its template has no ${value}, so no prompt is rendered.
        found = gr.HTML(html_template="", js_on_load=None, visible="hidden")

        names = list(self.controls)
        components = list(self.controls.values())
        preset = self.controls["preset"]
        for name, component in self.controls.items():
            # A Textbox fires "input" only for typing; a paste fires "change".
            listener = component.change if isinstance(component, gr.Textbox) else component.input
            on_client(listener, call("settings", "controlChanged", name, names), inputs=components)
        sliders = [self.controls[parameter.name] for parameter in PRESET_PARAMETERS]
        chosen = on_server(preset.input, _preset_listener(defaults or _lowest), inputs=[preset], outputs=sliders)
        # What was chosen may be out of date by now: the script has the last word on what the controls show.
        on_client(chosen.success, call("settings", "presetApplied", names), inputs=[preset], outputs=components)
        on_client(chosen.failure, call("settings", "presetFailed", names), outputs=components)
        prompt = self.controls["system_prompt_name"]
        asked = on_server(prompt.input, _prompt_listener(find_prompt or _no_prompt), inputs=[prompt], outputs=[found])
        on_client(asked.success, call("settings", "promptFound", names), inputs=[found], outputs=components)
        on_client(asked.failure, call("settings", "promptFailed", names), outputs=components)
        on_client(reset.click, call("settings", "reset"))
        on_client(show.click, call("settings", "controlValues", names), outputs=components)


def _lowest() -> dict[str, float]:
    return {parameter.name: parameter.slider.low for parameter in PRESET_PARAMETERS if parameter.slider is not None}


def _preset_listener(defaults: Callable[[], Mapping[str, float]]) -> Callable[[object], list[Any]]:
    def choose_preset(name: object) -> list[Any]:
        """Return what the sliders show for a preset."""
        if isinstance(name, str) and name.startswith(OWN_PRESET):
            return [gr.skip()] * len(PRESET_PARAMETERS)  # the script has set the sliders
        preset = next((each for each in PRESETS if each.name == name), None)
        if preset is None:
            raise gr.Error("There is no such preset. Choose one from the list.", print_exception=False)
        values = {**defaults(), **preset.values}
        return [values[parameter.name] for parameter in PRESET_PARAMETERS]

    return choose_preset


async def _no_prompt(name: str) -> None:  # noqa: ARG001 - there is none of any name
    return None


def _prompt_listener(find_prompt: FindPrompt) -> Callable[[object], Awaitable[dict[str, Any]]]:
    async def choose_prompt(name: object) -> dict[str, Any]:
        """Return the name, with ``prompt``, or with ``error``, a sentence, if it is gone since the page has loaded."""
        if not isinstance(name, str) or len(name) > _MAX_NAME_CHARS or not _is_encodable(name):
            raise gr.Error("There is no such system prompt. Choose one from the list.", print_exception=False)
        if name in _NO_PROMPTS:
            return {"name": name}
        prompt = await find_prompt(name)
        if prompt is None:
            return {"name": name, "error": "This system prompt has been removed. Choose another one."}
        return {"name": name, "prompt": dict(prompt)}

    return choose_prompt


def _is_encodable(name: str) -> bool:
    """Whether a response can repeat ``name``: JSON can hold half of a surrogate pair, which UTF-8 cannot encode."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _controls() -> dict[str, Component]:
    """Return the controls, keyed by the name of their field in ``ChatSettings``."""
    controls: dict[str, Component] = {}
    _heading("Prompt")
    controls["system_prompt_name"] = gr.Dropdown(
        [], label="System prompt", info="Instructions sent before the conversation.", elem_classes="dm-prompt"
    )
    gr.HTML('<div class="dm-prompt-about"></div>', apply_default_css=False, js_on_load=None)
    controls["system_prompt"] = gr.Textbox(
        label="System prompt text",
        info="Write your own, or edit the selected one.",
        lines=4,
        max_lines=10,
        elem_classes="dm-prompt-text",
    )
    # Hidden by the script while there are no documents.
    controls["collections"] = gr.CheckboxGroup(
        [],
        label="Sources",
        info="Replies in this chat rest on the documents of what is ticked, and cite them.",
        elem_classes="dm-control-collections",
    )
    _heading("Sampling")
    controls["preset"] = gr.Radio(
        [(preset.title, preset.name) for preset in PRESETS],
        label="Preset",
        info="A starting point for the controls below.",
        elem_classes="dm-preset",
    )
    gr.HTML('<div class="dm-own-presets"></div>', apply_default_css=False, js_on_load=None)
    controls |= _parameter_controls(is_advanced=False)
    gr.HTML(_ADVANCED, apply_default_css=False, js_on_load=None)
    # Hidden by the style sheet: Gradio would not make the controls in a closed accordion, but they show settings.
    with gr.Column(elem_classes="dm-advanced", min_width=0):
        controls |= _parameter_controls(is_advanced=True)
        controls["json_schema"] = gr.Textbox(
            label="JSON schema",
            info="Each reply is JSON that fits this schema. Empty: free text.",
            lines=2,
            max_lines=12,
            elem_classes="dm-control-json_schema",
        )
    return controls | _model_controls()


def _heading(text: str) -> None:
    gr.HTML(f'<h3 class="dm-settings-group">{text}</h3>', apply_default_css=False, js_on_load=None)


def _model_controls() -> dict[str, Component]:
    """Return the controls of what the loaded model can do. The script hides each while it cannot."""
    with gr.Column(elem_classes="dm-model-settings", min_width=0):
        _heading("Thinking and tools")
        return {
            "adapter": gr.Dropdown(
                [],
                label="Adapter",
                info="Changes how the model replies in this chat.",
                elem_classes="dm-control-adapter",
            ),
            "thinking": gr.Radio(
                [("Model's default", "default"), ("On", "on"), ("Off", "off")],
                label="Thinking",
                info="Whether the model thinks before it answers.",
                elem_classes="dm-control-thinking",
            ),
            "max_thinking_tokens": gr.Number(
                minimum=1,
                precision=0,
                label="Maximum thinking",
                info="Tokens after which the answer begins. Empty: no limit of its own.",
                elem_classes="dm-control-max_thinking_tokens",
            ),
            "use_tools": gr.Checkbox(
                label="Tools",
                info="The model may call the tools that are offered here. It asks before it does.",
                elem_classes="dm-control-use_tools",
            ),
        }


def _parameter_controls(*, is_advanced: bool) -> dict[str, Component]:
    """Return the controls of the sampling parameters that are, or are not, below "Advanced"."""
    return {
        parameter.name: _control(parameter) for parameter in CHAT_PARAMETERS if is_advanced == parameter.is_advanced
    }


def _control(parameter: Parameter) -> Component:
    """Create a parameter's control. ``settings.js`` looks up its range: Gradio also reports typed values outside it."""
    common: dict[str, Any] = {
        "label": parameter.label,
        "info": parameter.help,
        "elem_classes": f"dm-control-{parameter.name}",
    }
    if (slider := parameter.slider) is not None:
        return gr.Slider(slider.low, slider.high, step=slider.step, **common)
    if parameter.kind.is_number:
        return gr.Number(minimum=parameter.low, precision=0 if parameter.kind is Kind.WHOLE else None, **common)
    return gr.Textbox(lines=2, max_lines=4, **common)  # a string per line
