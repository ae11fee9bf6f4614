"""Paged attention kernels, one module each, and the selection of the one that runs."""
