"""Repositories of accounts: users, sign-in sessions, API keys, invitations, and their erasure."""
