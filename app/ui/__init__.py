"""The pages: the chat page, a Gradio app of ``components/``, and what ``pages/`` has for it and for the others."""

from app.ui.gradio_patches import disable_type_stubs

disable_type_stubs()  # must run before Gradio is imported, which the other modules of this package do
