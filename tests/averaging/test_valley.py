"""The detector: phases, reasons, refused settings and losses, resume."""

from __future__ import annotations

import math

import pytest

from swad.averaging.valley import LossValley, Phase


def test_phases_and_reasons():
    valley = LossValley(n_converge=2, n_tolerance=2, tolerance_ratio=0.5)
    seen = [(str(s.phase), s.reason) for s in map(valley.observe, [3, 1, 1.2, 1.3, 9, 9])]
    assert seen == [
        ("searching", "new lowest loss 3; must stay the lowest for 2 evaluations"),
        ("searching", "new lowest loss 1; must stay the lowest for 2 evaluations"),
        ("averaging", "below the threshold 1.65"),
        ("averaging", "below the threshold 1.65"),
        ("averaging", "1 of 2 evaluations in a row above the threshold 1.65"),
        ("stopped", "2 evaluations in a row above the threshold 1.65: overfitted"),
    ]
    before = valley.status
    assert valley.observe(0.1) == before  # later losses change nothing


@pytest.mark.parametrize("semantics", ["paper", "reference"])
def test_rounding_of_the_mean_puts_no_equal_loss_above_the_threshold(semantics):
    assert sum([0.173] * 3) / 3 < 0.173  # also where Python's sum keeps track of rounding, as it does from 3.12 on
    valley = LossValley(n_converge=3, tolerance_ratio=0, semantics=semantics)
    statuses = [valley.observe(0.173) for _ in range(20)]
    assert statuses[2].reason == statuses[-1].reason == "below the threshold 0.173"
    assert (statuses[-1].threshold, statuses[-1].end_step) == (0.173, 20)


def test_nonfinite_losses_raise_by_default_and_change_nothing():
    valley = LossValley()
    valley.observe(1.0)
    before = valley.state_dict()
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="must be finite"):
            valley.observe(bad)
    assert valley.state_dict() == before


def test_a_skipped_evaluation_is_as_if_it_had_not_happened():
    with_nan = LossValley(nonfinite="skip")
    without = LossValley()
    for step, loss in enumerate([3, math.nan, 1, 1.2, math.inf, 1.3, 1.1, 9, 9, math.nan, 9, 9, 9, 9], 1):
        status = with_nan.observe(loss, step)
        if math.isfinite(loss):
            assert without.observe(loss, step) == status
    assert status.phase is Phase.STOPPED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_converge": 0}, "n_converge .* at least 1, got 0"),
        ({"n_tolerance": 0}, "n_tolerance .* at least 1, got 0"),
        ({"n_tolerance": 1.5}, "whole number"),
        ({"tolerance_ratio": -0.1}, "at least 1.*tolerance_ratio=-0.1"),
        ({"tolerance_ratio": math.nan}, "at least 1"),
        ({"semantics": "both"}, "one of paper, text, reference, got 'both'"),
        ({"nonfinite": "ignore"}, "one of raise, skip"),
        ({"semantics": "reference", "n_tolerance": math.inf}, "queues"),
    ],
)
def test_bad_settings_say_the_rule(options, message):
    with pytest.raises(ValueError, match=message) as error:
        LossValley(**options)
    assert "\n" not in str(error.value)


def test_bad_observations_say_the_rule():
    valley = LossValley()
    valley.observe(1.0, step=10)
    with pytest.raises(ValueError, match="which was at step 10; got step 10"):
        valley.observe(1.0, step=10)
    with pytest.raises(ValueError, match="must be >= 0"):
        valley.observe(-0.5, step=20)


def test_a_valley_resumes_only_with_its_own_settings():
    state = LossValley(n_converge=3).state_dict()
    with pytest.raises(ValueError, match="n_converge 3 in the state, 4 here"):
        LossValley(n_converge=4).load_state_dict(state)
