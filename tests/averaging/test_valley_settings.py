"""Scores, absolute tolerances, a later start and a second search, each against a slow definition."""

from __future__ import annotations

import json
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import ROOT
from helpers.averages import OneHot, drive, n_buffers, reload, uniform, weights_of
from swad import SWAD, FalseStartWarning, LossValley
from swad.averaging.spans import Phase

pytestmark = pytest.mark.filterwarnings(
    "ignore::swad.averaging.swad.NeverConvergedWarning",
    "ignore::swad.averaging.swad.FalseStartWarning",
    "ignore:the first 4 validation losses rise",
)

LORA = [0.6911, 0.6909, 0.6957, 0.6931, 0.6749, 0.5918, 0.4782, 0.45, 0.43, 0.42, 0.41, 0.405, 0.402, 0.403, 0.404]
LANDMARKS = [66.0, 64, 62, 60, 61, 62, 55, 53, 48, 44, 39, 35, 32, 30]


def twin(losses, n_converge, n_tolerance, threshold_of, text=False):
    """Return the evaluations of the start and the end, from all losses at once; None for what was not found."""
    for start in range(len(losses) - n_converge + 1):
        window = losses[start : start + n_converge]
        if window[0] == min(window):
            break
    else:
        return None, None, None
    threshold = max(threshold_of(window[0] if text else sum(window) / n_converge), window[0])
    for last in range(start + n_converge, len(losses)):
        above = losses[last - n_tolerance + 1 : last + 1]
        if last - n_tolerance + 1 >= 0 and min(above) > threshold:
            return start, last - n_tolerance + (1 if text else 0), threshold
    return start, len(losses) - 1, threshold


LOSSES = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=1, max_size=14)
COUNTS = st.integers(1, 4)


@given(LOSSES, COUNTS, COUNTS, st.sampled_from([0, 0.25, 1, 3]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_an_absolute_tolerance_averages_what_the_definition_says(losses, n_converge, n_tolerance, tolerance, text):
    valley = LossValley(n_converge, n_tolerance, semantics="text" if text else "paper", tolerance=tolerance)
    average = SWAD(OneHot(len(losses) * 2 + 1), valley=valley)
    drive(average, losses, per_segment=2)
    start, end, threshold = twin(losses, n_converge, n_tolerance, lambda mean: mean + tolerance, text)
    if start is None:
        assert valley.phase is Phase.SEARCHING
        return
    assert valley.status.threshold == pytest.approx(threshold)
    assert weights_of(average) == uniform(range(2 * start + 2, 2 * end + 3))
    assert n_buffers(average) <= max(2, n_converge + 1)


@given(LOSSES, st.sampled_from(["paper", "text", "reference"]), st.integers(-9, 9))
@settings(max_examples=150, deadline=None)
def test_an_absolute_tolerance_does_not_depend_on_the_level_of_the_losses(losses, semantics, level):
    spans = []
    for shift in (0, level):
        valley = LossValley(2, 3, semantics=semantics, tolerance=0.5)
        for loss in losses:
            valley.observe(loss + shift)
        spans.append(valley.spans())
    assert spans[0] == spans[1]


@given(st.lists(st.integers(0, 16).map(lambda n: n / 16), min_size=1, max_size=20), st.data())
@settings(max_examples=150, deadline=None)
def test_a_score_is_the_loss_of_its_distance_to_one(scores, data):
    options = {"semantics": data.draw(st.sampled_from(["paper", "text", "reference"]))}
    options["tolerance"] = data.draw(st.sampled_from([None, 0.125]))
    score, loss = LossValley(2, 3, 0.5, mode="max", **options), LossValley(2, 3, 0.5, **options)
    for value in scores:
        ours, theirs = score.observe(value), loss.observe(1 - value)
        assert (ours.phase, ours.spans) == (theirs.phase, theirs.spans)
        assert (ours.threshold is None) == (theirs.threshold is None)
        assert ours.threshold is None or ours.threshold == pytest.approx(1 - theirs.threshold)


def test_the_words_of_a_score_are_those_of_a_score():
    valley = LossValley(2, 2, mode="max")
    reasons = [valley.observe(score).reason for score in (0.8, 0.7, 0.9, 0.1, 0.1)]
    assert reasons == [
        "new highest score 0.8; must stay the highest for 2 evaluations",
        "above the threshold 0.675",
        "above the threshold 0.675",
        "1 of 2 evaluations in a row below the threshold 0.675",
        "2 evaluations in a row below the threshold 0.675: overfitted",
    ]


@pytest.mark.parametrize("semantics", ["paper", "text", "reference"])
def test_nothing_before_the_start_is_averaged(semantics):
    losses = [1.0, 2.0, 3.0, 2.0, 1.5, 1.6, 1.7, 1.6]
    valley = LossValley(2, 6, semantics=semantics, start=35)
    average, model = SWAD(OneHot(81), valley=valley), None
    model = average.tracked.model
    for step in range(1, 31):
        model.go_to(step)
        average.update_parameters(model)
        if step % 10 == 0:
            average.observe(losses[step // 10 - 1])
    with pytest.raises(RuntimeError, match="begins at the first evaluation from update 35 on, and this is update 30"):
        average.averaged_state()
    assert average.status.reason == "evaluations before update 35 are not observed"
    for step in range(31, 81):
        model.go_to(step)
        average.update_parameters(model)
        if step % 10 == 0:
            average.observe(losses[step // 10 - 1])
    assert average.status.start_step == (41 if semantics == "reference" else 50)
    assert min(weights_of(average)) == average.status.start_step
    assert weights_of(reload(average, SWAD(OneHot(81), valley=LossValley(2, 6, semantics=semantics, start=35)))) == (
        weights_of(average)
    )


def restarts(losses, n_converge, much_lower, threshold_of):
    """Return the evaluations at which a search begins, from a search over all losses for each of them."""
    begins = [0]
    while True:
        first = begins[-1]
        start, _, threshold = twin(losses[first:], n_converge, 10**6, threshold_of)
        if start is None:
            return begins
        confirmed, row = first + start + n_converge - 1, 0
        for k in range(confirmed + 1, len(losses)):
            row = row + 1 if losses[k] < much_lower(threshold) else 0
            if row == n_converge:
                begins.append(k)
                break
        else:
            return begins


@given(st.lists(st.integers(1, 64).map(lambda n: n / 8), min_size=3, max_size=25), st.integers(1, 3), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_restart_begins_with_the_weights_of_the_evaluation_that_decides(losses, n_converge, absolute):
    tolerance = 0.5 if absolute else None
    valley = LossValley(n_converge, math.inf, 0.25, restart=True, tolerance=tolerance)
    average = SWAD(OneHot(2 * len(losses) + 1), valley=valley)
    drive(average, losses, per_segment=2)
    threshold_of = (lambda mean: mean + 0.5) if absolute else (lambda mean: 1.25 * mean)
    much_lower = (lambda threshold: threshold - 1) if absolute else (lambda threshold: 0.8 * threshold / 1.25)
    begin = restarts(losses, n_converge, much_lower, threshold_of)[-1]
    start, _, _ = twin(losses[begin:], n_converge, 10**6, threshold_of)
    lowest = losses[begin:].index(min(losses[begin:]))
    first = 2 * (begin + (lowest if start is None else start)) + 2
    assert weights_of(average) == uniform(range(first, 2 * len(losses) + 1))


def test_a_restarted_average_resumes():
    for cut in range(1, len(LANDMARKS)):
        whole, first = (SWAD(OneHot(141), valley=LossValley(restart=True)) for _ in range(2))
        drive(whole, LANDMARKS)
        drive(first, LANDMARKS[:cut])
        second = reload(first, SWAD(OneHot(141), valley=LossValley(restart=True)))
        for step in range(10 * cut + 1, 141):
            second.tracked.model.go_to(step)
            second.update_parameters()
            if step % 10 == 0:
                second.observe(LANDMARKS[step // 10 - 1])
        assert second.status == whole.status
        assert weights_of(second) == weights_of(whole)


def recorded_losses():
    """The validation losses of trainings with a real valley, which this project measured."""
    for folder in ("pacs-resnet50/PACS/erm", "pacs-resnet50-three-way/constant/PACS/erm"):
        for run in sorted((ROOT / "benchmarks" / "results" / folder).glob("*-*")):
            rows = map(json.loads, (run / "records.jsonl").read_text().splitlines())
            yield [row["value"] for row in rows if row["metric"] == "valley_loss"]


def test_false_starts_are_warned_of_and_real_valleys_are_not():
    recorded = list(recorded_losses())
    assert len(recorded) == 24
    restarted = 0
    for losses in recorded:
        valley, searching = LossValley(), LossValley(restart=True)
        for loss in losses:
            status = valley.observe(loss)
            searching.observe(loss)
        assert not status.warning
        restarted += searching.status.start_step != status.start_step
    assert restarted == 2
    for losses, share in ((LORA, "9 of the 11"), (LANDMARKS, "6 of the 8")):
        average = SWAD(OneHot(10 * len(losses) + 1))
        drive(average, losses)
        assert f"{share} losses since are far below those there" in average.status.warning
        with pytest.warns(FalseStartWarning, match="probably no valley: pass a later start, or restart=True"):
            average.averaged_state()
        searching = LossValley(restart=True)
        assert not [searching.observe(loss) for loss in losses][-1].warning


def test_losses_that_look_like_accuracies_are_warned_of_once():
    valley = LossValley()
    for score in (0.3, 0.5, 0.6):
        valley.observe(score)
    with pytest.warns(UserWarning, match=r"rise from 0.3 to 0.61: if they are accuracies .* mode='max'"):
        valley.observe(0.61)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        valley.observe(0.7)
        for losses in ((0.3, 0.5, 0.4, 0.6), (0.9, 1.1, 1.2, 1.3), (1.0, 0.2, 0.3, 0.4, 0.5)):
            other = LossValley()
            for loss in losses:
                other.observe(loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "maximum"}, "mode must be one of min, max, got 'maximum': did you mean 'max'"),
        ({"tolerance": -1}, "tolerance must be at least 0 and finite, got -1"),
        ({"tolerance": math.nan}, "tolerance must be at least 0 and finite, got nan"),
        ({"start": 1.5}, "start counts updates and must be a whole number of at least 0, got 1.5"),
        ({"restart": True, "semantics": "reference"}, "cannot begin again at an evaluation: use 'paper' or 'text'"),
    ],
)
def test_bad_settings_say_the_rule(options, message):
    with pytest.raises(ValueError, match=message):
        LossValley(**options)


def test_a_value_outside_of_its_bound_is_refused_before_anything_changes():
    average = SWAD(OneHot(), valley=LossValley(mode="max"))
    average.update_parameters()
    with pytest.raises(ValueError, match=r"at most 1, .* got 93.1: divide percents by 100, or pass an absolute"):
        average.observe(93.1)
    assert average.observe(0.931).phase is Phase.SEARCHING
    with pytest.raises(ValueError, match=r"must be >= 0, .* or an absolute tolerance"):
        LossValley().observe(-1.0)
    assert LossValley(tolerance=1).observe(-1.0).phase is Phase.SEARCHING
    assert LossValley(tolerance=1, mode="max").observe(93.1).phase is Phase.SEARCHING


def test_a_valley_has_its_settings_alone_and_resumes_with_them():
    model = OneHot()
    with pytest.raises(ValueError, match="got also n_converge, semantics: set them there"):
        SWAD(model, 5, semantics="text", valley=LossValley())
    average = SWAD(model, valley=LossValley(mode="max"))
    with pytest.raises(ValueError, match="mode 'max' in the state, 'min' here"):
        SWAD(model).load_state_dict(average.state_dict())
