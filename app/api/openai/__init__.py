"""OpenAI-compatible API over the engine. Only the responses of ``/v1/responses`` are stored."""

from app.api.openai.routes import install_openai

__all__ = ["install_openai"]
