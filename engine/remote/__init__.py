"""An engine that runs elsewhere: the same interface over servers that speak OpenAI's API."""
