"""The middle panel: header, messages and composer. ``static/chat.js`` drives it."""

from __future__ import annotations

import gradio as gr

from app.ui.client_events import on_client

_HEADER = """
<header id="dm-header">
  <button type="button" id="dm-toggle-conversations" class="dm-icon-button" aria-label="Conversations"
    aria-controls="dm-conversations" aria-expanded="true"><span class="dm-icon dm-icon-menu"></span></button>
  <h1 id="dm-title" dir="auto">New chat</h1>
  <span id="dm-temporary-mark" hidden>Temporary</span>
  <p id="dm-status" role="status"></p>
  <button type="button" id="dm-me" class="dm-icon-button" aria-haspopup="menu" aria-expanded="false" hidden
    ><span class="dm-icon dm-icon-person"></span></button>
  <button type="button" id="dm-toggle-settings" class="dm-icon-button" aria-label="Settings"
    aria-controls="dm-settings" aria-expanded="false"><span class="dm-icon dm-icon-sliders"></span></button>
</header>
"""

_MESSAGES = """
<div id="dm-scroll" tabindex="0" role="region" aria-label="Messages">
  <section id="dm-welcome" hidden>
    <h2>What would you like to talk about?</h2>
    <p id="dm-welcome-model"></p>
    <ul id="dm-examples"></ul>
    <p id="dm-temporary-choice">
      <button type="button" id="dm-temporary" class="dm-chip" aria-pressed="false">Temporary chat</button>
      <span id="dm-temporary-hint"></span>
    </p>
  </section>
  <button type="button" id="dm-earlier" hidden>Show earlier messages</button>
  <div id="dm-messages"></div>
</div>
<button type="button" id="dm-latest" hidden><span class="dm-icon dm-icon-down"></span>Jump to latest</button>
<div id="dm-announcer" class="dm-hidden" aria-live="polite"></div>
"""

_ALERT = '<div id="dm-toast" role="status"></div><div id="dm-alert" role="alert"></div><p id="dm-viewer-note"></p>'
_CANNED = """
<button type="button" id="dm-canned" class="dm-icon-button" aria-label="Canned replies" title="Canned replies (/)"
  aria-haspopup="dialog"><span class="dm-icon dm-icon-canned"></span></button>
"""
_HINT = '<p id="dm-hint">Press Enter to send, Shift+Enter for a new line, Esc to stop a reply.</p>'


def chat_panel() -> None:
    """Add the panel to the current Blocks context."""
    with gr.Column(elem_id="dm-chat", min_width=0):
        gr.HTML(_HEADER, apply_default_css=False, js_on_load=None)
        gr.HTML(_MESSAGES, elem_id="dm-messages-frame", apply_default_css=False, js_on_load=None)
        with gr.Column(elem_id="dm-composer", min_width=0):
            gr.HTML(_ALERT, elem_id="dm-alert-frame", apply_default_css=False, js_on_load=None)
            with gr.Row(elem_id="dm-composer-row"):
                gr.HTML(_CANNED, elem_id="dm-canned-frame", apply_default_css=False, js_on_load=None)
                gr.Textbox(
                    label="Message",
                    show_label=False,
                    container=False,
                    placeholder="Write a message",
                    lines=1,
                    max_lines=12,
                    elem_id="dm-box",
                )
                send = gr.Button("Send", variant="primary", elem_id="dm-send", min_width=0)
                stop = gr.Button("Stop", elem_id="dm-stop", min_width=0)
            gr.HTML(_HINT, apply_default_css=False, js_on_load=None)
    on_client(send.click, "() => window.deskmate.send()")
    on_client(stop.click, "() => window.deskmate.stop()")
