"""The right panel: sampling parameters and system prompt of a conversation (``static/settings.js``).

Below them is the model section, which applies to all conversations (``static/model.js``).
"""

from __future__ import annotations

import json

import gradio as gr
from gradio.components import Component

from app.ui.client_events import on_client

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

_PRESETS_INFO = "A starting point for the controls below."


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
        "preset": gr.Radio([], label="Preset", info=_PRESETS_INFO, elem_id="dm-preset"),
        "system_prompt_name": gr.Dropdown(
            [], label="System prompt", info="Instructions sent before the conversation.", elem_id="dm-prompt"
        ),
    }
    gr.HTML('<div id="dm-prompt-about"></div>', apply_default_css=False, js_on_load=None)
    return controls | {
        "system_prompt": gr.Textbox(
            label="System prompt text",
            info="Write your own, or edit the selected one.",
            lines=4,
            max_lines=10,
            elem_id="dm-prompt-text",
        ),
        "temperature": _slider(
            "temperature", 0, 2, 0.05, "Temperature", "Lower is more predictable; 0 always picks the likeliest word."
        ),
        "top_p": _slider("top_p", 0.01, 1, 0.01, "Top-p", "Keeps the likeliest words until they add up to this share."),
        "top_k": _slider("top_k", 0, 200, 1, "Top-k", "Keeps only this many likeliest words; 0 keeps all."),
        "min_p": _slider("min_p", 0, 1, 0.01, "Min-p", "Drops words less likely than this share of the likeliest one."),
        "repetition_penalty": _slider(
            "repetition_penalty",
            1,
            2,
            0.01,
            "Repetition penalty",
            "Above 1, words already used become less likely.",
        ),
        "max_tokens": gr.Number(
            label="Maximum length",
            minimum=1,
            precision=0,
            info="Maximum tokens in a reply. Leave empty to let the model decide.",
            elem_id="dm-control-max_tokens",
        ),
        "stop": gr.Textbox(
            label="Stop strings",
            lines=2,
            max_lines=4,
            info="The reply stops before any of these. One per line.",
            elem_id="dm-control-stop",
        ),
        "seed": gr.Number(
            label="Seed",
            minimum=0,
            precision=0,
            info="The same seed repeats a reply (exactly, in float32). Leave empty for a random seed.",
            elem_id="dm-control-seed",
        ),
    }


def _slider(field: str, min_value: float, max_value: float, step: float, label: str, info: str) -> gr.Slider:
    """Create a slider whose range ``settings.js`` can look up, because Gradio also reports typed values outside it."""
    return gr.Slider(min_value, max_value, step=step, label=label, info=info, elem_id=f"dm-control-{field}")
