"""The two definitions of the paper: one candidate for the start, and sums that are merged early."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.valleys import observe_all
from swad.averaging.valley import LossValley, Span


def test_the_confirmation_window_is_not_part_of_the_start():
    # l = 1.3 * mean(1, 4, 4) = 3.9, so everything after the floor exceeds it.
    _, status = observe_all([1, 4, 4, 4, 4, 4, 4, 4], steps=[10 * k for k in range(1, 9)], semantics="paper")
    assert status.spans == (Span(10, 10),)
    assert status.should_stop


def test_a_tie_does_not_dethrone_the_earlier_evaluation():
    _, status = observe_all([2, 1, 1, 1], steps=[10, 20, 30, 40])
    assert status.start_step == 20


@given(
    losses=st.lists(st.integers(0, 5), min_size=1, max_size=15),
    n_converge=st.integers(1, 4),
    n_tolerance=st.integers(1, 5),
    semantics=st.sampled_from(["paper", "text"]),
)
@settings(max_examples=300)
def test_plans_never_keep_more_sums_than_max_buffers(losses, n_converge, n_tolerance, semantics):
    # Losses that are no multiples of one another to the last digit, so that no bound is met exactly.
    losses = [loss + math.sqrt(k) * 1e-4 for k, loss in enumerate(losses, 1)]
    valley = LossValley(n_converge, n_tolerance, 0.3, semantics)
    for loss in losses:
        valley.observe(loss)
        assert len(valley.keep_plan.sums) + 1 <= valley.max_buffers
        if valley.converged or semantics == "text":
            assert len(valley.keep_plan.sums) + 1 <= 2


def test_a_third_buffer_only_above_three_and_a_quarter_times_the_lowest_loss():
    for loss, n_sums in ((3.249, 1), (3.251, 2)):
        valley, _ = observe_all([1.0, loss])
        assert len(valley.keep_plan.sums) == n_sums
    assert LossValley().max_buffers == 3
    assert LossValley(semantics="text").max_buffers == 2
    assert LossValley(semantics="reference").max_buffers == 8
