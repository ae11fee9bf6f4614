"""Tests of reading GGUF files."""
