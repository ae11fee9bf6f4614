"""From messages to tokens and back: chat templates, detokenization, stop strings, the word filter."""
