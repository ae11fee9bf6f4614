"""The chat page: Gradio lays out the panels, ES modules in ``static/`` bring them to life over the JSON API."""
