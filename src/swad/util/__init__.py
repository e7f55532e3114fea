"""Files, progress and optional packages: no torch, nothing else of swad."""
