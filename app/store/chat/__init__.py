"""Repositories of the chat: conversations, messages, turns, leases, search, imports and exports."""
