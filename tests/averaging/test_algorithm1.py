"""Algorithm 1 and section 3.2 of the paper: one candidate for the start, and sums that are merged early."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.averages import n_buffers
from helpers.valleys import observe_all
from swad import SWAD, AverageGroup
from swad.averaging.algorithm1 import Algorithm1
from swad.averaging.valley import LossValley, Phase, Span


def test_the_confirmation_window_is_not_part_of_the_start():
    # l = 1.3 * mean(1, 4, 4) = 3.9, so everything after the floor exceeds it.
    _, status = observe_all([1, 4, 4, 4, 4, 4, 4, 4], steps=[10 * k for k in range(1, 9)], semantics="paper")
    assert status.spans == (Span(10, 10),)
    assert status.should_stop


def test_a_tie_does_not_dethrone_the_earlier_evaluation():
    _, status = observe_all([2, 1, 1, 1], steps=[10, 20, 30, 40])
    assert status.start_step == 20


@pytest.mark.parametrize("semantics", ["paper", "text"])
def test_the_end_and_a_loss_that_meets_the_threshold(semantics):
    """A loss of exactly l is inside; `paper` ends before the losses above l, `text` with the first of them."""
    _, status = observe_all([2, 2, 4, 5, 5], tolerance_ratio=1, n_converge=2, n_tolerance=2, semantics=semantics)
    assert status.should_stop
    assert status.spans == (Span(1, 3 if semantics == "paper" else 4),)


@pytest.mark.parametrize("semantics", ["paper", "text"])
def test_the_threshold_is_known_when_the_start_is_confirmed(semantics):
    valley = LossValley(semantics=semantics)
    assert [valley.observe(loss).threshold for loss in (1.0, 1.2, 1.4)][:2] == [None, None]
    assert valley.status.threshold == pytest.approx(1.3 if semantics == "text" else 1.3 * 1.2)


def test_until_it_is_confirmed_the_start_is_the_lowest_loss_so_far():
    rule, starts = Algorithm1(4, 6, 1.3, text=False), []
    for k, loss in enumerate([3.0, 2.0, 4.0, 1.0, 1.0], 1):
        rule.observe(loss, 10 * k)
        starts.append(rule.start)
    assert starts == [10, 20, 20, 40, 40]


def test_only_losses_that_still_matter_are_kept():
    for n_tolerance in (1, 6, math.inf):
        rule = Algorithm1(3, n_tolerance, 1.3, text=False)
        for k in range(200):
            rule.observe(1.0 + 5 * (k > 100 and n_tolerance == math.inf), k + 1)
            assert len(rule.L) == len(rule.u) <= max(3, min(n_tolerance, 6))


@given(
    losses=st.lists(st.integers(0, 5), min_size=1, max_size=15),
    n_converge=st.integers(1, 4),
    n_tolerance=st.integers(1, 5),
    semantics=st.sampled_from(["paper", "text"]),
)
@settings(max_examples=300)
def test_an_average_settles_to_two_buffers(losses, n_converge, n_tolerance, semantics):
    # Losses that are no multiples of one another to the last digit, so that no bound is met exactly.
    losses = [loss + math.sqrt(k) * 1e-4 for k, loss in enumerate(losses, 1)]
    averager = SWAD(nn.Linear(1, 1), n_converge, n_tolerance, 0.3, semantics)
    most = 1 + min(n_converge - 1, n_tolerance - 1, math.ceil(n_converge / 1.3) - 1)
    for loss in losses:
        averager.update_parameters()
        status = averager.observe(loss)
        above = status.phase is Phase.SEARCHING or averager.rule.detector.n_above > 0
        settled = semantics == "text" or status.should_stop or not above
        assert n_buffers(averager) <= (2 if settled else max(2, most))


def test_a_third_buffer_only_above_three_and_a_quarter_times_the_lowest_loss():
    for loss, most in ((3.249, 2), (3.251, 3)):
        averager = SWAD(nn.Linear(1, 1))
        for each in (1.0, loss):
            averager.update_parameters()
            averager.observe(each)
        assert n_buffers(averager) == most


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0], [2, 3, 3, 3, 3, 3, 1]),  # as many as may lie above the threshold
        ([1.0, 9.0, 9.0, 9.0, 1.2, 9.0, 9.0], [2, 3, 3, 3, 2, 2, 2]),
        ([1.0, 4.0, 0.9, 0.9, 0.9, 0.9, 0.9], [2, 3, 2, 2, 2, 2, 2]),
    ],
)
@pytest.mark.parametrize("in_group", [False, True])
def test_a_third_buffer_goes_with_the_next_loss_that_is_not_above_the_threshold(losses, expected, in_group):
    model = nn.Linear(1, 1)
    averager = AverageGroup(model, {"swad": SWAD(model)}) if in_group else SWAD(model)
    counts = []
    for loss in losses:
        averager.update_parameters()
        averager.observe(loss)
        counts.append(n_buffers(averager))
    assert counts == expected
