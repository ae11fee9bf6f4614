"""File formats of conversations: Deskmate's own, Markdown, and other programs' exports. Only the service does I/O."""
