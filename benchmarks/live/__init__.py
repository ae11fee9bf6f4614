"""A real server, and people who chat with it as the page does."""
