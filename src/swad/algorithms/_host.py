"""Chance that torch cannot draw from a generator: drawn on the host, without reading the device."""

from __future__ import annotations

import numpy as np
import torch


def stream(generator: torch.Generator, step: int) -> np.random.RandomState:
    """NumPy's numbers for a step: a function of the generator's seed and the step, on every device the same."""
    # The seed a generator was given lies on the host; a number drawn from a generator on a GPU does not.
    words = np.random.SeedSequence((generator.initial_seed(), step))
    return np.random.RandomState(np.random.MT19937(words))


def beta(random: np.random.RandomState, alpha: float, size: int) -> list[float]:
    """Draw from Beta(alpha, alpha). For 0 all ones: its limit, where one of two images is taken whole."""
    return [1.0] * size if alpha == 0 else [float(one) for one in random.beta(alpha, alpha, size)]


def put(values: list[float], device: torch.device) -> torch.Tensor:
    """Numbers on a device, without waiting for it."""
    return torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)
