"""Sweeps: what to compare (`SweepSpec`), the runs it takes (`expand`), and their directory (`SweepDir`)."""
