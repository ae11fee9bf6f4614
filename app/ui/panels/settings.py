"""The right panel: sampling parameters and system prompt of a conversation (``static/settings.js``).

Below them is the model section, which applies to all conversations (``static/model.js``).
"""

from __future__ import annotations

import json
from typing import Any

import gradio as gr
from gradio.components import Component

from app.domain.chat_settings import CHAT_PARAMETERS
from app.ui.client_events import on_client
from engine import Kind, Parameter

_MODEL = """
<section id="dm-model" aria-labelledby="dm-model-title">
  <h3 id="dm-model-title">Model</h3>
  <p id="dm-model-state" role="status"></p>
  <p id="dm-model-about"></p>
  <progress id="dm-model-progress" max="1" value="0" aria-label="Loading the model" hidden></progress>
  <div id="dm-model-life" hidden>
    <label for="dm-model-name">Another model</label>
    <input id="dm-model-name" type="text" autocomplete="off" autocapitalize="off" spellcheck="false"
      aria-describedby="dm-model-info" placeholder="Folder or hub ID">
    <p id="dm-model-info">A folder on the server, or a hub ID such as Qwen/Qwen3-0.6B. Conversations are kept.</p>
    <p id="dm-model-error" role="alert"></p>
    <div id="dm-model-buttons">
      <button type="button" id="dm-model-load">Load</button>
      <button type="button" id="dm-model-rest">Sleep</button>
    </div>
  </div>
</section>
"""

_ADVANCED = """
<button type="button" id="dm-advanced-toggle" aria-expanded="false" aria-controls="dm-advanced">
  <span class="dm-icon dm-icon-next"></span><span>Advanced</span><span id="dm-advanced-changed"></span>
</button>
"""


def settings_panel() -> None:
    """Add the panel to the current Blocks context."""
    with gr.Column(elem_id="dm-settings", min_width=0):
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
        gr.HTML(_MODEL, apply_default_css=False, js_on_load=None)
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
