"""OpenAI-compatible API over the engine. Stores nothing."""

from app.api.openai.routes import install_openai

__all__ = ["install_openai"]
