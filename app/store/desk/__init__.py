"""Repositories of the desk: audit log, reviews, template versions, usage."""
