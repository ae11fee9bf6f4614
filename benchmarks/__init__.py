"""Measures Deskmate beside its peers. Imports nothing from tests."""
