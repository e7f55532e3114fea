"""Robustness of a classifier: corruptions for any images, ImageNet-C, ImageNet-R and the Background Challenge."""
