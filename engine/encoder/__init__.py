"""Runs encoders of the Hugging Face hub: texts to vectors."""
