"""The three panels of the chat page, one module each."""
