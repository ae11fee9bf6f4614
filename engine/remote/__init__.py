"""The engine's interface over remote OpenAI-compatible servers."""
