"""Workers train runs until none is left: on this machine, in Slurm jobs or on a Ray cluster, with the same records."""
