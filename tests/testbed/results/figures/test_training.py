import dataclasses
import random
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from helpers.figures import text_boxes
from helpers.run_tree import write_run
from swad.testbed.results.figures.style import save_figure
from swad.testbed.results.figures.training import save_valley_figures, shown_runs, valley_figure
from swad.testbed.results.records import Record, RecordWriter
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.testbed.results.training_curves import mean_curve, source_curves, valleys


def test_the_panel_shows_curves_threshold_and_range(runs: list[RunData]) -> None:
    run = runs[0]
    loss, accuracy = valley_figure([run]).axes
    (curves,) = source_curves([run], "loss")
    drawn = {line.get_label(): line for line in loss.lines}
    for domain, curve in curves.items():
        assert list(drawn[domain].get_xdata()) == list(curve)
        assert list(drawn[domain].get_ydata()) == list(curve.values())
    assert list(drawn["mean"].get_ydata()) == list(mean_curve(curves.values()).values())
    state = valleys([run])[0]["swad"]
    assert set(drawn["threshold"].get_ydata()) == {state.threshold}
    for panel in (loss, accuracy):
        upright = {line.get_xdata()[0] for line in panel.lines if len(set(line.get_xdata())) == 1}
        assert upright == {state.start, state.end}
    assert run.targets[0] not in drawn
    assert max(accuracy.lines[2].get_ydata()) > 1  # percent


def test_a_figure_for_each_trial_with_the_targets_side_by_side(runs: list[RunData], tmp_path: Path) -> None:
    paths = save_valley_figures(collect_results(runs), tmp_path, formats=("svg",))
    assert [path.name for path in paths] == ["valley-PACS-erm-trial0.svg", "valley-PACS-erm-trial1.svg"]
    text = paths[0].read_text()
    assert all(f"target: {target}" in text for target in ("art_painting", "sketch"))


def test_of_several_runs_without_a_selection_the_longest_is_shown(tmp_path: Path) -> None:
    for lr in (1e-5, 5e-5):
        write_run(tmp_path / "runs" / f"lr-{lr}", lr=lr, finished=False)
    with RecordWriter(tmp_path / "runs" / "lr-5e-05") as writer:
        writer.append(Record("r", 10_000, None, None, "train_loss", 0.1))
    write_run(tmp_path / "runs" / "sketch", target="sketch")
    (results,) = collect_results(find_runs(tmp_path / "runs"))
    assert [run.path.name for run in shown_runs(results)] == ["lr-5e-05", "sketch"]
    assert [path.name for path in save_valley_figures([results], tmp_path, ("svg",))] == ["valley-PACS-erm-trial0.svg"]


@pytest.mark.slow
def test_labels_do_not_overlap(runs: list[RunData]) -> None:
    boxes = text_boxes(valley_figure([run for run in runs if run.trial == 0]))
    assert not [1 for index, a in enumerate(boxes) for b in boxes[:index] if a.overlaps(b)]


@pytest.mark.parametrize("records", [(), (Record("r", 1, "art", "out", "loss", float("nan")),)])
def test_a_run_that_has_hardly_begun_is_drawn(records: tuple[Record, ...], tmp_path: Path) -> None:
    run = RunData(tmp_path, {"target": "photo", "steps": 100}, records, finished=False)
    save_figure(valley_figure([run]), tmp_path / "early.svg")


def test_a_single_evaluation_is_drawn_as_a_dot(tmp_path: Path) -> None:
    records = [Record("r", step, domain, "out", "loss", 1.0) for step in (50, 100) for domain in ("art", "cartoon")]
    for count, marker in ((2, "o"), (4, "None")):
        run = RunData(tmp_path, {"target": "photo", "steps": 100}, tuple(records[:count]), finished=False)
        assert {line.get_marker() for line in valley_figure([run], metrics=("loss",)).axes[0].lines} == {marker}


def test_axes_are_labeled(runs: list[RunData]) -> None:
    loss, accuracy = valley_figure([runs[0]]).axes
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("Validation loss", "Validation accuracy, %")
    assert accuracy.get_xlabel() == "Step"
    assert "averaged range" in loss.get_legend_handles_labels()[1]


def test_curves_and_range_are_not_cut_off_at_the_ends_of_the_axes(tmp_path: Path) -> None:
    records = [Record("r", step, "art", "out", "loss", 0.0) for step in (0, 50, 100)]
    records += [Record("r", step, "art", "out", "accuracy", float(step > 0)) for step in (0, 50, 100)]
    records += [Record("r", 100, None, None, name, at, "swad") for name, at in (("start_step", 0), ("end_step", 100))]
    records.append(Record("r", 100, None, None, "threshold", 0.5, "swad"))
    run = RunData(tmp_path, {"target": "photo", "steps": 100}, tuple(records), finished=True)
    loss, accuracy = valley_figure([run]).axes
    for axes in (loss, accuracy):
        left, right = axes.get_xlim()
        assert left < 0
        assert right > 100
    assert loss.get_ylim()[0] < 0
    assert accuracy.get_ylim()[0] < 0
    assert accuracy.get_ylim()[1] > 100


def test_a_diverged_run_shows_its_valley_and_its_early_peak(tmp_path: Path) -> None:
    losses = [1.0, 0.4, 0.5, 2.0, 5e12, 3.0, *[2.0] * 9]
    records = [Record("r", 100 * n, "art", "out", "loss", loss) for n, loss in enumerate(losses)]
    records += [Record("r", 100 * n, "art", "out", "accuracy", 0.9 if n == 1 else 0.2) for n in range(len(losses))]
    run = RunData(tmp_path, {"target": "photo"}, tuple(records), finished=True)
    loss, accuracy = valley_figure([run]).axes
    assert loss.get_yscale() == "log"
    assert loss.get_ylim()[0] < 0.4
    assert loss.get_ylim()[1] > 5e12
    assert loss.yaxis.get_major_formatter()(1e12) == "1e12"
    assert accuracy.get_ylim()[1] > 90
    usual = [dataclasses.replace(record, value=min(record.value, 5.0)) for record in records]
    assert valley_figure([dataclasses.replace(run, records=tuple(usual))]).axes[0].get_yscale() == "linear"


def test_curves_are_those_of_a_plain_loop() -> None:
    """Steps out of order, domains out of order, values recorded twice, a target, other weights, and an empty run."""
    numbers = random.Random(0)
    runs = []
    for name, target in (("a", "b"), ("b", None), ("c", "a"), ("d", None)):
        keys = [(numbers.randrange(9), numbers.choice("cab"), numbers.choice(["out", "in"])) for _ in range(60)]
        records = [
            Record(name, step, domain, split, "loss", numbers.random(), numbers.choice([None, None, "swad"]))
            for step, domain, split in keys
        ]
        runs.append(RunData(Path(name), {"target": target}, records if name != "d" else [], True))
    expected = []
    for run in runs:
        curves: dict[str, dict[int, float]] = {}
        for record in run.records:
            if record.split == "out" and record.average is None and record.domain not in run.targets:
                curves.setdefault(record.domain, {})[record.step] = record.value
        expected.append([(name, sorted(curves[name].items())) for name in sorted(curves)])
    found = source_curves(runs, "loss")
    assert [[(name, list(curve.items())) for name, curve in each.items()] for each in found] == expected
