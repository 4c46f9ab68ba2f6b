"""Kernels, each beside the plain PyTorch it must equal, and the hash all randomness comes from."""
