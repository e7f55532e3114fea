"""One run: its config, loop, evaluation, checkpoints and saved weights."""
