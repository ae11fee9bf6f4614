"""Conversations in files: our own format, Markdown, what other programs export. Only the service does I/O."""
