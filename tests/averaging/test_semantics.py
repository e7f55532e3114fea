"""The three definitions against slow twins that know the definitions and nothing else."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.valleys import expected, losses_of, observe_all, settings_of
from swad.averaging.valley import LossValley, Span

WORKED = [1.9, 0.60, 0.50, 0.45, 0.40, 0.43, 0.44, 0.50, 0.51, 0.53, 0.54, 0.56, 0.57, 0.58, 0.60, 0.61, 0.62, 0.63]


@pytest.mark.parametrize(
    ("semantics", "threshold", "spans"),
    [
        ("text", 0.52, [Span(401, 901)]),
        ("paper", 0.5503, [Span(401, 1001)]),
        ("reference", 0.5503, [Span(202, 301), Span(302, 401, 2), Span(402, 1001)]),
    ],
)
def test_worked_example(semantics, threshold, spans):
    valley, status = observe_all(WORKED, [1 + 100 * k for k in range(len(WORKED))], semantics=semantics)
    assert status.threshold == pytest.approx(threshold, abs=5e-5)
    assert status.spans == tuple(spans)
    assert status.should_stop
    if semantics == "reference":
        assert valley._step == 1601  # "stops at 1600", counted from 0


def test_worked_example_of_the_reference_double_count():
    losses = [60, 50, 24, 23, 22, 20, 21, 22, 21, 22, 21, 22, 23, 21, 90, 90, 90, 90, 90, 90, 90]
    _, status = observe_all(losses, semantics="reference")
    assert status.spans == (Span(4, 5), Span(6, 6, 2), Span(7, 14))  # evaluations counted from 1


def test_reference_converged_at_the_first_evaluation_counts_it_three_times():
    _, status = observe_all([1.0] * 12, semantics="reference")
    assert status.spans[:2] == (Span(1, 1, 3), Span(2, 3, 2))


def test_the_confirmation_window_is_not_part_of_the_start():
    # l = 1.3 * mean(1, 4, 4) = 3.9, so everything after the floor exceeds it.
    _, status = observe_all([1, 4, 4, 4, 4, 4, 4, 4], steps=[10 * k for k in range(1, 9)], semantics="paper")
    assert status.spans == (Span(10, 10),)
    assert status.should_stop


def test_a_tie_does_not_dethrone_the_earlier_evaluation():
    _, status = observe_all([2, 1, 1, 1], steps=[10, 20, 30, 40])
    assert status.start_step == 20


@pytest.mark.slow
def test_spans_follow_the_definition_on_thousands_of_sequences():
    """After every evaluation, with a resume at a random one: the steps said to be averaged are the definition's."""
    for seed in range(2500):
        rng = random.Random(seed)
        losses, options = losses_of(rng), settings_of(rng)
        valley = LossValley(**options)
        resume_at = rng.randrange(len(losses))
        step, steps = 0, []
        for k, loss in enumerate(losses):
            step += rng.randint(1, 3)
            steps.append(step)
            status = valley.observe(loss, step)
            if k == resume_at:
                state = json.loads(json.dumps(valley.state_dict()))
                valley = LossValley(**options)
                valley.load_state_dict(state)
                assert valley.status == status
            want = expected(losses[: k + 1], steps, step, options)
            got = {i: s.times for s in status.spans for i in range(s.first, s.last + 1)}
            assert set(got) == set(want), (seed, options, losses[: k + 1])
            if options["semantics"] == "reference":  # an update's weight is its segment's, shared out
                lengths = {end: end - begin for begin, end in itertools.pairwise([0, *steps])}
                shares = {i: got[i] / lengths[min(u for u in steps if u >= i)] for i in got}
                total = sum(shares.values())
                relative = {i: share / total for i, share in shares.items()}
                assert relative == pytest.approx({i: float(weight) for i, weight in want.items()})
            if options["semantics"] != "reference":
                assert all(s.times == 1 for s in status.spans)
                assert status.n_averaged == len(want)


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
