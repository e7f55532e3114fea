"""Measurements of saved weights of runs."""
