"""The left panel: new chat, search, and the conversation list, which ``static/conversations.js`` fills."""

from __future__ import annotations

import gradio as gr

from app.ui.client_events import on_client

_TAGS = '<div id="dm-tags" role="group" aria-label="Tags" hidden></div>'

_LIST = """
<p id="dm-list-note" role="status"></p>
<ul id="dm-list"></ul>
<button type="button" id="dm-list-more" hidden>Show more</button>
"""

_FOOT = """
<div id="dm-list-foot">
  <button type="button" id="dm-show-archived" class="dm-chip" aria-pressed="false">Archived</button>
  <button type="button" id="dm-export" class="dm-chip" aria-haspopup="menu" aria-expanded="false">Export all</button>
  <button type="button" id="dm-import" class="dm-chip">Import</button>
  <a id="dm-desk" class="dm-chip" href="/desk">Desk</a>
  <input type="file" id="dm-import-file" accept=".json,.jsonl,.zip" hidden>
</div>
<p id="dm-retention" hidden></p>
"""


def conversations_panel() -> None:
    """Add the panel to the current Blocks context."""
    with gr.Column(elem_id="dm-conversations", min_width=0):
        gr.HTML('<a id="dm-brand" href="/">Deskmate</a>', apply_default_css=False, js_on_load=None)
        new_chat = gr.Button("New chat", elem_id="dm-new")
        search = gr.Textbox(
            label="Search conversations",
            show_label=False,
            container=False,
            placeholder="Search",
            lines=1,
            max_lines=1,
            elem_id="dm-search",
        )
        gr.HTML(_TAGS, elem_id="dm-tags-frame", apply_default_css=False, js_on_load=None)
        gr.HTML(_LIST, elem_id="dm-list-frame", apply_default_css=False, js_on_load=None)
        gr.HTML(_FOOT, elem_id="dm-list-foot-frame", apply_default_css=False, js_on_load=None)
    on_client(new_chat.click, "() => window.deskmate.newChat()")
    on_client(search.change, "(query) => window.deskmate.search(query)", inputs=[search])
