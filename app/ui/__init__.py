"""The chat page: Gradio lays out the panels, ES modules in ``static/`` bring them to life over the JSON API."""

from app.ui.gradio_patches import disable_type_stubs

disable_type_stubs()  # whatever is imported next of this package imports Gradio
