"""The chat page's own API: conversations, messages, turns and their events, files, canned replies."""
