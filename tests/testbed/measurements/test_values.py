"""Measured values against slow loops over images."""

from __future__ import annotations

import pytest
import torch

from swad.robustness.corruptions import corrupt
from swad.testbed.data.transforms import Normalize, eval_transform, to_pil
from swad.testbed.measure import engine
from swad.testbed.measure.saved_run import open_run, stratified_subset
from swad.testbed.measurements.calibration import Calibration
from swad.testbed.measurements.corruption import Corruption
from swad.testbed.results.measured import measured
from swad.testbed.results.measurement_rows import read_rows
from swad.testbed.results.runs import load_run


def subsets(run, n):
    sources, target = run.held_out
    for side, splits in (("seen", sources.val), ("unseen", target.full)):
        for split in splits:
            yield side, split.name, stratified_subset(split, n)


def single_images(run, subset):
    spec = run.held_out.sources.image_spec
    for key in subset.keys.tolist():
        yield key, eval_transform(spec)(to_pil(subset.domain.image(key)))[None], subset.domain.labels[key]


def test_errors_are_those_of_a_loop_over_images(two_trials):
    run = open_run(two_trials / "paper-0")
    what = Corruption(images=30, corruptions=("fog",), severities=(5,), seed=3)
    engine.measure(engine.plan([(run, ["swa"])], what))
    rows = [row for row in read_rows(run.path, what.file) if row["kind"] == "error" and row["severity"] == 5]
    model, normalize = run.model("swa"), Normalize(run.held_out.sources.image_spec)
    for side, name, subset in subsets(run, 30):
        wrong = 0
        for key, image, label in single_images(run, subset):
            foggy = corrupt(image, "fog", 5, seed=3, indices=torch.tensor([key]))
            wrong += model(normalize(foggy)).argmax().item() != label
        (row,) = [row for row in rows if row["domain"] == name]
        assert (row["error"], row["side"], row["n"]) == (wrong / 30, side, 30)


def test_the_calibration_error_is_that_of_its_definition(two_trials):
    run = open_run(two_trials / "paper-0")
    engine.measure(engine.plan([(run, ["best"])], Calibration(images=40, bins=5)))
    values = measured([load_run(run.path)], Calibration).set_index(["side", "quantity"])["value"]
    model, normalize = run.model("best"), Normalize(run.held_out.sources.image_spec)
    by_side = {"seen": [], "unseen": []}
    for side, _, subset in subsets(run, 40):
        answers = []
        for _, image, label in single_images(run, subset):
            with torch.no_grad():
                confidence, predicted = model(normalize(image)).softmax(1)[0].double().max(0)
            answers.append((float(confidence), float(predicted == label)))
        error = 0.0
        for low in (0.0, 0.2, 0.4, 0.6, 0.8):
            inside = [pair for pair in answers if low <= pair[0] < low + 0.2 or (low == 0.8 and pair[0] == 1.0)]
            if inside:
                error += abs(sum(c - a for c, a in inside)) / len(answers)
        by_side[side].append(error)
    for side, errors in by_side.items():
        assert values[side, "ECE"] == pytest.approx(sum(errors) / len(errors), abs=1e-6)
