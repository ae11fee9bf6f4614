"""The chat page: a Gradio app of this package's components. ``docs/components.md`` tells how to use them in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import gradio as gr

from app.ui.chat_api import add_chat_api
from app.ui.component_files import SCRIPT_ROOT, import_module
from app.ui.components import Chat, Composer, Conversations, Header, Model, ModelMenu, Settings
from app.ui.model_events import serve_model
from app.ui.options import find_prompt, preset_defaults

if TYPE_CHECKING:
    from app.services.container import Services

# Runs once Gradio has rendered the components. A module that fails to load, for example because the network changed,
# would be missing for as long as the page is open, so the page reloads.
_START = """
async () => {{
  {root}
  let page;
  try {{
    page = await {module};
    await page.start();
  }} catch (error) {{
    const failedToLoad = page ? error.name === "LoadError" : error instanceof TypeError;
    if (!failedToLoad) throw error;
    document.querySelector("#dm-composer .dm-alert").textContent = "Part of the page failed to load. Reloading …";
    document.documentElement.classList.add("dm-visible");
    setTimeout(() => location.reload(), 2000);
  }}
}}
"""


_TEMPORARY_HINT = "Kept in memory only. It isn't listed, and it's deleted after a day or when Deskmate stops."


def build_page(services: Callable[[], Services]) -> gr.Blocks:
    """Return the page. ``services`` is called per event, because the services open after the page is built."""
    with gr.Blocks(title="Deskmate", fill_height=True, fill_width=True, analytics_enabled=False) as page:
        with gr.Row(elem_id="dm-app"):
            with gr.Column(elem_id="dm-conversations", min_width=0):
                Conversations(
                    actions=Conversations.ACTIONS,
                    parts=Conversations.PARTS,
                    filter="listener",
                    heading="Deskmate",
                    links=[("Desk", "/desk")],
                    file_types=[".json", ".jsonl", ".zip"],
                    height=None,
                )
            with gr.Column(elem_id="dm-chat", min_width=0):
                Header("New chat", panels=Header.PANELS, models=True)
                ModelMenu()
                Chat(
                    actions=Chat.ACTIONS,
                    temporary_hint=_TEMPORARY_HINT,
                    keep_edits=True,
                    height=None,
                )
                Composer(
                    canned=[],
                    drafts=True,
                    comparisons=True,
                    canned_empty="There are no canned replies yet. Admins can add them at /desk.",
                    elem_id="dm-composer",
                )
            with gr.Column(elem_id="dm-settings", min_width=0):
                Settings(
                    lambda: preset_defaults(services().engine),
                    lambda name: find_prompt(services(), name),
                )
                model = Model()
        serve_model(model, services)
        add_chat_api(page, services)
        start = _START.format(root=SCRIPT_ROOT, module=import_module("pages/chat/page.js"))
        page.load(fn=None, js=start, queue=False, api_visibility="private", show_progress="hidden")
    return page
