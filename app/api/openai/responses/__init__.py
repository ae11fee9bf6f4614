"""OpenAI's Responses API: replies as items, whole or streamed."""
