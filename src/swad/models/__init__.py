"""Networks, fused frozen batch norm and CUDA graph capture."""
