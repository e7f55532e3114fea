"""Random numbers drawn on the host have the distribution that they should have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swad.algorithms._helpers import draw_beta, host_stream


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 10.0])
def test_beta_draws_have_the_moments_of_the_distribution(alpha):
    random = host_stream(torch.Generator().manual_seed(0), 1)
    shares = np.array(draw_beta(random, alpha, 20_000))
    variance = 1 / (4 * (2 * alpha + 1))
    assert shares.mean() == pytest.approx(0.5, abs=4 * (variance / 20_000) ** 0.5)
    assert shares.var() == pytest.approx(variance, rel=0.05)
