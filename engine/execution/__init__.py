"""Runs the steps that the scheduler plans: batches, attention kernels, CUDA graphs, the C++ decoder, speculation."""
