"""From a finished run to a model in use: choose its weights, predict, and export it for other programs."""
