"""Where runs are trained: on this machine, on a Ray cluster or by Slurm, with the same records whichever it was."""
