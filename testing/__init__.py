"""What several tests build on: tiny models and tokenizers, made on the spot, without network."""
