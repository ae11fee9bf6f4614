"""Inboxes, contacts and cases. Every method takes the actor: a user of the desk, a contact, or the bot at an epoch."""
