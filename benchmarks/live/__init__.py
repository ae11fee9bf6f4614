"""Runs a real server with simulated users who chat through the page's own routes."""
