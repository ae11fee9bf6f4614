"""Opens and closes everything that a handler uses, once per process."""
