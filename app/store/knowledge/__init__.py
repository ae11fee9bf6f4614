"""The knowledge base: collections, documents, chunks and their search, with the user's rights in every query."""
