import numpy as np
import pytest
import torch

from swad.flatness._bootstrap import Effects, interval, p_value, resample


def quadratics(n: int, columns: int) -> np.ndarray:
    """Return rises of `columns` quadratics in n directions each, minus the expected rise."""
    directions = np.random.default_rng(4).normal(size=(n, columns, 20)) ** 2
    eigenvalues = np.linspace(0.1, 3.0, 20)
    return directions @ eigenvalues / directions.sum(-1) - eigenvalues.mean()


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_and_p_values_of_few_directions_are_students(n):
    """Without Student's factor, intervals of 5 directions cover 88 % and 12 % have p < 0.05."""
    units = torch.tensor(quadratics(n, 3000))
    deviations = resample({"a": Effects(units, None)}, 2000, seed=0)["a"]
    for confidence, off in ((0.8, 0.04), (0.95, 0.02)):
        low, high = interval(units.mean(0), deviations, confidence)
        assert ((low < 0) & (high > 0)).double().mean().item() == pytest.approx(confidence, abs=off)
    p = p_value(units.mean(0), deviations)
    assert (p < 0.05).double().mean().item() == pytest.approx(0.05, abs=0.02)
    assert (p < 0.01).double().mean().item() == pytest.approx(0.01, abs=0.008)
