"""Networks by name, and files of weights."""
