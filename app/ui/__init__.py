"""The chat page. Gradio lays out the panels; the ES modules in ``static/`` drive them through the JSON API."""

from app.ui.gradio_patches import disable_type_stubs

disable_type_stubs()  # must run before Gradio is imported, which the other modules of this package do
