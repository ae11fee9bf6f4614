"""Who may call what: the guard in front of every route, accounts, sessions, API keys, rate limits and quotas."""
