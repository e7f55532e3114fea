"""A run without a target in everything that measures saved weights, beside one with a target, and on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.pages import build_page
from helpers.runs import short
from swad.testbed.measure import engine
from swad.testbed.measure.saved_run import open_runs
from swad.testbed.measurements.corruption import Corruption
from swad.testbed.measurements.curvature import Curvature
from swad.testbed.measurements.flatness import Flatness
from swad.testbed.measurements.surface import Surface
from swad.testbed.measurements.tune import Tune
from swad.testbed.results.accuracy_table import accuracy_table
from swad.testbed.results.measured import measured
from swad.testbed.results.measured_report import report
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.testbed.training.loop import train


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for target in ("none", "paper"):
        train(
            short(
                root / f"{target}-0", target=target, steps=6, evaluate_every=2, keep_segments=True, snapshots=(2, 4, 6)
            )
        )
    return root


def test_tables_and_page_keep_both_kinds_of_accuracy_apart(both):
    runs = find_runs(both)
    benchmark, shipped = collect_results(runs)
    table = accuracy_table(shipped)
    assert (table.title, table.columns) == ("digits, no target", ("Validation",))
    for weights, row in zip(shipped.results.weights.unique(), table.rows, strict=True):
        (run,) = (run for run in runs if not run.targets)
        rows = run.frame
        final = rows.value[(rows.metric == "accuracy") & (rows.split == "out") & (rows.weights == weights)]
        assert len(final) == 4
        assert row.cells[0].value == pytest.approx(100 * sum(final) / 4)
    assert "No target: trained on all domains. Mean accuracy in % on their validation splits" in table.notes[0]
    assert accuracy_table(benchmark).columns == ("paper", "Avg.", "In-domain")
    page = build_page(runs)
    assert "<h3>No target<span" in page
    assert 'paper<span class="as"> as target' in page
    assert "none<span" not in page
    assert "mean over targets; without a target, mean over the validation or test splits of all domains" in page
    seeds = [replace(run, config={**run.config, "seed": seed}) for seed in (0, 1) for run in runs if not run.targets]
    assert "Accuracy in %, mean over targets" not in build_page(seeds)


def test_weights_without_a_target_are_measured_on_seen_domains(both):
    runs, _ = open_runs([both])
    weights = [(run, ["best", "swad"]) for run in runs]
    engine.measure(engine.plan(weights, Flatness(images=4, radii=(0.0, 1.0), directions=4)))
    flat = report(measured(find_runs(both), Flatness), Flatness).tables
    assert [table.title for table in flat[::2]] == [
        f"F: {name}" for name in ("digits, seen", "digits, unseen", "digits, no target, seen")
    ]
    engine.measure(engine.plan(weights, Surface(images=4, steps=2)))
    (points,) = Surface.report(find_runs(both)).tables
    unseen = {row.name.split(",")[0]: row.cells[1].number for row in points.rows}
    assert unseen["none"] == "–" != unseen["paper"]
    engine.measure(engine.plan(weights, Corruption(images=4, corruptions=("fog",), severities=(1,))))
    errors = report(measured(find_runs(both), Corruption), Corruption).tables
    names = ("digits, seen", "digits, unseen", "digits, no target, seen")
    assert [table.title for table in errors[::2]] == [f"Corruption error, %: {name}" for name in names]
    assert "No target, one trial." in errors[-1].notes[0] or "No target, one trial." in errors[-2].notes[0]
    none = next(run for run in runs if run.name == "none-0")
    jobs = engine.plan([(none, ["swad"])], Curvature(images=2, eigenvalues=1, trace_vectors=2))
    engine.measure(jobs)
    assert {row["side"] for row in jobs[0].rows()} == {"seen"}
    engine.measure(engine.plan(weights, Tune(n_converge=(1,), n_tolerance=(1,), tolerance_ratio=(0.0,))))
    tuned = measured(find_runs(both), Tune)
    targets = {name: set(rows["target"]) for name, rows in tuned.groupby("quantity")}
    assert targets["Validation, %"] == {"paper", "none"}
    assert targets["Target, %"] == {"paper"}
