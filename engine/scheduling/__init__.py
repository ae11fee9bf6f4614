"""Which request computes which tokens in the next step, and in which KV blocks. Pure Python, without torch."""
