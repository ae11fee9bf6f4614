"""The C++ decoder: whole steps for Llama-like models, once it is shown to compute what the model computes."""
