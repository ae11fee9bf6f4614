"""Requests to other servers: one check of where they may go."""
