"""Each peer is a process of its own: a file here for each, the protocol they speak, and the catalogue of them."""
