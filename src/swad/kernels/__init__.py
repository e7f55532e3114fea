"""Kernels for GPUs, written in Triton; each has a plain twin that it is tested against."""
