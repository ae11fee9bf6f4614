"""Routes of accounts: signing in, a user's own account, links, and user administration."""
