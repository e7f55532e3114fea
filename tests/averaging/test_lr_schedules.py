"""Learning rates against a formula of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swad.averaging.lr_schedules import Decay, cyclic_lr


@given(
    st.integers(0, 20), st.integers(1, 60), st.floats(0, 1), st.floats(0.2, 4), st.none() | st.integers(1, 9), st.data()
)
def test_decay_is_interpolated_between_its_corners(warmup, length, low, power, cycle, data):
    end = warmup + length
    decay, step = Decay(warmup, end, low, power, cycle), data.draw(st.integers(0, 2 * end))
    if step < warmup:
        expected = np.interp(step + 1, [0, warmup], [0, 1])
    elif step < end:
        expected = low + (1 - low) * np.interp(step, [warmup, end], [1, 0]) ** power
    elif cycle is None:
        expected = low
    else:
        expected = np.interp((step - end) % cycle + 1, [0, cycle], [low, low / 20])
    assert decay(step) == pytest.approx(expected, abs=1e-12)


def test_cycles_after_a_decay_are_those_of_swa():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler, decay, rates = cyclic_lr(optimizer, cycle=3), Decay(2, 10, 0.5, cycle=3), []
    for _ in range(7):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert [decay(step) for step in range(10, 17)] == pytest.approx(rates)


def test_a_warm_up_beyond_the_decay_is_refused():
    with pytest.raises(ValueError, match="a decay needs 0 <= warmup <= end"):
        Decay(3, 2, 0.1)
