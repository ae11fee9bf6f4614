"""Conversations in files: our own format, Markdown, and what other programs export. Nothing here reads or writes."""
