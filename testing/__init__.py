"""Builders and fakes shared by tests and benchmarks: tiny models, tokenizers and servers, made without a network."""
