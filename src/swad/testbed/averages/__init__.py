"""Averages by name, as a command line has them, and averages of segments that a training kept."""
