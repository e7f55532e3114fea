"""Many checkpoints into one (`swad.merge`). A module of that name would hide the function."""
