"""The three definitions against slow twins that know the definitions and nothing else."""

from __future__ import annotations

import itertools
import json
import random

import pytest

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
