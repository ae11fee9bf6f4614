"""What the hardware offers: free memory, copies to the GPU, whether CUDA and Triton can be used."""
