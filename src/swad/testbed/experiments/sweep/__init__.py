"""Sweeps: what to compare (`SweepSpec`), the runs it takes (`expand`), their directory (`SweepDir`) and scheduler."""
