"""SWA and SMA: exactly the updates of the window."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from helpers.averages import OneHot, drive, n_buffers, scaled_steps, uniform, weights_of
from swad import SMA, SWA


def test_swa_takes_the_papers_ten_weights():
    model = OneHot(5100)
    average = SWA(model, start=4000, end=5000, interval=100)
    for step in range(1, 5051):
        model.go_to(step)
        average.update_parameters(model)
    assert weights_of(average) == uniform(range(4100, 5001, 100))
    assert average.averaged_state()["count"].item() == 5000
    assert n_buffers(average) == 1
    assert average.status.n_averaged == 10
    assert average.status.should_stop


def test_a_dense_window_is_longer_than_its_segments():
    model = OneHot(1000)
    average = SWA(model, start=100, end=900)
    for step in range(1, 951):
        model.go_to(step)
        average.update_parameters(model)
    assert weights_of(average) == uniform(range(101, 901))


def test_sma_averages_everything_after_its_start():
    model = OneHot()
    average = SMA(model, start=7)
    drive(average, [1.0] * 5)
    assert weights_of(average) == uniform(range(8, 51))


def test_without_opt_overfit_is_a_dense_fixed_window():
    average = SWA(OneHot(), start=40, end=60)
    drive(average, [1.0] * 9)
    assert weights_of(average) == uniform(range(41, 61))


def test_replays_are_counted_up_to_each_averaged_update():
    model = OneHot()
    average = SWA(model, start=0, interval=5)
    with pytest.raises(
        ValueError,
        match="must end at update 5, where an average takes the weights or ends a sum; got 7 replays after update 0",
    ):
        average.count_replays(7)
    for step in (5, 7, 10):
        model.go_to(step)
        average.count_replays(step - average.step)
    assert weights_of(average) == uniform([5, 10])


def test_a_window_stays_closed_whatever_comes_after():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    average = SWA(model, start=1, end=4)
    for step in scaled_steps(model, average, 10):
        if step == 5:
            average.observe(1.0)
        if step > 5:
            with torch.no_grad():
                model.weight.fill_(math.nan)
    assert average.status.n_averaged == 3
    assert average.averaged_state()["weight"].isfinite().all()


def test_whole_numbers_may_be_floats():
    average = SWA(OneHot(), start=0.8 * 50, end=60.0, interval=1e1)
    drive(average, [1.0] * 9)
    assert weights_of(average) == uniform([50, 60])
    assert average.status.n_averaged == 2


@pytest.mark.parametrize("interval", [1, 2])
def test_buffers_are_those_of_the_last_update_in_the_window(interval):
    model = OneHot()
    average = SWA(model, start=1, end=3, interval=interval)
    for step in range(1, 7):
        model.go_to(step)
        average.update_parameters(model)
    assert average.averaged_state()["count"].item() == 3
    average.observe(1.0)
    assert average.averaged_state()["count"].item() == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: SWA(m, start=5, end=5), r"start \+ interval <= end"),
        (lambda m: SWA(m, start=5, end=8, interval=4), r"start \+ interval <= end; got start=5, end=8, interval=4"),
        (lambda m: SWA(m, start=0, interval=0), "interval >= 1"),
        (lambda m: SWA(m, start=0.75), "needs whole numbers of updates, .* got start=0.75, end=None"),
        (lambda m: SWA(m, start=4000, end=0.9), r"start \+ interval <= end.* end=0.9"),
        (lambda m: SWA(m, start="4000"), "start='4000'"),
        (lambda m: SMA(m, start=2.5), "start=2.5"),
    ],
)
def test_bad_settings_say_the_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make(nn.Linear(1, 1))
