"""The schedules equal torch's, and a mistake is one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, MultiStepLR

from swad.testbed.training.lr_schedule import LOWEST, Cycle, WarmupDecay, lr_factor, parse, problem


def rates(scheduler, optimizer, steps):
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found


def sgd():
    return torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in (1.0, 0.01)])


def test_a_step_equals_torchs():
    mine, theirs = sgd(), sgd()
    factor = lr_factor("step:at=0.6,gamma=0.1", 10, None)
    assert rates(LambdaLR(mine, factor), mine, 10) == rates(MultiStepLR(theirs, [6], 0.1), theirs, 10)


def test_an_exponential_schedule_decays_after_every_epoch_as_torchs():
    mine, theirs = sgd(), sgd()
    found = rates(LambdaLR(mine, lr_factor("exponential:gamma=0.9", 12, 4)), mine, 12)
    by_epoch = rates(ExponentialLR(theirs, 0.9), theirs, 4)
    for step, got in enumerate(found):
        assert got == pytest.approx(by_epoch[step // 3])


@pytest.mark.parametrize("name", ["constant", "cyclic", "decay"])
def test_other_schedules_have_no_factor(name):
    assert lr_factor(name, 10, None) is None


@pytest.mark.parametrize(
    ("text", "epochs", "words"),
    [
        ("steps", None, "must be one of constant, cyclic, step, exponential, decay, got 'steps': did you mean 'step'?"),
        ("step:when=0.5", None, "the lr_schedule step takes at, gamma, got 'when'"),
        ("step:at=x", None, "at of the lr_schedule step must be a number, got 'x'"),
        ("step:at=60", None, "at of the lr_schedule step must be from 0 to 1, got 60"),
        ("cyclic:gamma=1", None, "the lr_schedule cyclic takes no options, got 'gamma'"),
        ("exponential", None, "decays after every epoch: set epochs"),
        (0.5, None, "lr_schedule must be a text, got 0.5"),
    ],
)
def test_a_mistake_is_one_line(text, epochs, words):
    found = problem(text, epochs)
    assert words in found
    assert "\n" not in found


def test_defaults():
    assert parse("exponential") == ("exponential", {"gamma": 0.99})
    assert problem("exponential", 3) is None


@given(
    st.integers(0, 20), st.integers(1, 60), st.floats(0, 1), st.floats(0.2, 4), st.none() | st.integers(1, 9), st.data()
)
def test_decay_is_interpolated_between_its_corners(warmup, length, low, power, cycle, data):
    end = warmup + length
    decay, step = WarmupDecay(warmup, end, low, power, cycle), data.draw(st.integers(0, 2 * end))
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
    decay, cycle = WarmupDecay(2, 10, 0.5, cycle=3), Cycle(3, LOWEST, 0)
    assert [decay(10 + step) for step in range(7)] == pytest.approx([0.5 * cycle(step) for step in range(7)])


def test_a_warm_up_beyond_the_decay_is_refused():
    with pytest.raises(ValueError, match="a decay needs 0 <= warmup <= end"):
        WarmupDecay(3, 2, 0.1)
