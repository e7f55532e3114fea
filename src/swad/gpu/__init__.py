"""What makes any network faster on a GPU: captured graphs and fused kernels."""
