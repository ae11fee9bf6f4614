"""From logits to tokens: on the CPU, on the GPU, penalties and log-probabilities."""
