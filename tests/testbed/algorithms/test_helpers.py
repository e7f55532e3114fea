"""Random numbers drawn on the host have the right distribution, and scaled gradients their factor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swad.testbed.algorithms._helpers import draw_beta, host_stream, scale_gradient


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 10.0])
def test_beta_draws_have_the_moments_of_the_distribution(alpha):
    random = host_stream(0, 1)
    shares = np.array(draw_beta(random, alpha, 20_000))
    variance = 1 / (4 * (2 * alpha + 1))
    assert shares.mean() == pytest.approx(0.5, abs=4 * (variance / 20_000) ** 0.5)
    assert shares.var() == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("factor", [-0.1, 0.05, 0.0])
def test_scaled_gradients_leave_the_rows_as_they_are(factor):
    rows = torch.randn(3, 2, requires_grad=True)
    same = scale_gradient(rows, factor)
    assert same.equal(rows)
    (same**2).sum().backward()
    torch.testing.assert_close(rows.grad, factor * 2 * rows.detach())
    fixed = rows.detach()
    assert scale_gradient(fixed, factor) is fixed
