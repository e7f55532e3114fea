"""Domains, splits, loaders, the image cache and augmentation on the GPU."""
