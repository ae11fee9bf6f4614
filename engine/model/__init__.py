"""Models: loaded through transformers, checked, and given faster linear layers."""
