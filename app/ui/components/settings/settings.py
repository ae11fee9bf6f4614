"""The settings of a conversation: sampling parameters and system prompt, as Gradio's own controls."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr
from gradio.components import Component

from app.domain.chat_settings import CHAT_PARAMETERS
from app.ui.client_events import on_client
from engine import Kind, Parameter

_ADVANCED = """
<button type="button" id="dm-advanced-toggle" aria-expanded="false" aria-controls="dm-advanced">
  <span class="dm-icon dm-icon-next"></span><span>Advanced</span><span id="dm-advanced-changed"></span>
</button>
"""


class Settings:
    """The controls of a conversation's settings, added to the current Blocks context."""

    def __init__(self) -> None:
        gr.HTML(
            '<h2 id="dm-settings-title">Settings</h2>'
            '<button type="button" id="dm-close-settings" class="dm-icon-button" aria-label="Close settings">'
            '<span class="dm-icon dm-icon-close"></span></button>',
            elem_id="dm-settings-head",
            apply_default_css=False,
            js_on_load=None,
        )
        gr.HTML(
            '<p id="dm-settings-note" role="status"></p>',
            elem_id="dm-settings-note-frame",
            apply_default_css=False,
            js_on_load=None,
        )
        controls = _controls()
        reset = gr.Button("Reset to the model's defaults", elem_id="dm-reset")
        # Hidden, clicked by settings.js: loads the open conversation's settings into the controls.
        show = gr.Button("Show settings", elem_id="dm-show-settings", visible="hidden")

        names = json.dumps(list(controls))
        components = list(controls.values())
        for name, component in controls.items():
            # A Textbox fires "input" only for typing; a paste fires "change".
            listener = component.change if isinstance(component, gr.Textbox) else component.input
            on_client(
                listener,
                f"(...values) => window.deskmate.settingsChanged({json.dumps(name)}, {names}, values)",
                inputs=components,
            )
        on_client(reset.click, "() => window.deskmate.resetSettings()")
        on_client(show.click, f"() => window.deskmate.shownSettings({names})", outputs=components)


def _controls() -> dict[str, Component]:
    """Return the controls, keyed by the name of their field in ``ChatSettings``."""
    controls: dict[str, Component] = {
        "preset": gr.Radio([], label="Preset", info="A starting point for the controls below.", elem_id="dm-preset"),
        "system_prompt_name": gr.Dropdown(
            [], label="System prompt", info="Instructions sent before the conversation.", elem_id="dm-prompt"
        ),
    }
    gr.HTML('<div id="dm-prompt-about"></div>', apply_default_css=False, js_on_load=None)
    controls |= {
        "system_prompt": gr.Textbox(
            label="System prompt text",
            info="Write your own, or edit the selected one.",
            lines=4,
            max_lines=10,
            elem_id="dm-prompt-text",
        ),
        **_parameter_controls(is_advanced=False),
    }
    gr.HTML(_ADVANCED, elem_id="dm-advanced-head", apply_default_css=False, js_on_load=None)
    # Hidden by the style sheet: Gradio would not make the controls in a closed accordion, but they show settings.
    with gr.Column(elem_id="dm-advanced", min_width=0):
        return controls | _parameter_controls(is_advanced=True)


def _parameter_controls(*, is_advanced: bool) -> dict[str, Component]:
    """Return the controls of the sampling parameters that are, or are not, below "Advanced"."""
    return {
        parameter.name: _control(parameter)
        for parameter in CHAT_PARAMETERS
        if is_advanced == (parameter.slider is not None and parameter.slider.is_advanced)
    }


def _control(parameter: Parameter) -> Component:
    """Create a parameter's control. ``settings.js`` looks up its range: Gradio also reports typed values outside it."""
    common: dict[str, Any] = {
        "label": parameter.label,
        "info": parameter.help,
        "elem_id": f"dm-control-{parameter.name}",
    }
    if (slider := parameter.slider) is not None:
        return gr.Slider(slider.low, slider.high, step=slider.step, **common)
    if parameter.kind.is_number:
        return gr.Number(minimum=parameter.low, precision=0 if parameter.kind is Kind.WHOLE else None, **common)
    return gr.Textbox(lines=2, max_lines=4, **common)  # a string per line
