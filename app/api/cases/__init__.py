"""The routes of inboxes and cases, for agents."""
