"""Averages of weights along a training trajectory: SWAD, SWA, SMA, EMA, and the detector of the loss valley."""
