from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.mistaken_runs import CLASSES, write_runs
from swad.testbed.results.mistakes import class_table, confusion_table, shown_predictions
from swad.testbed.results.predictions import PREDICTIONS, read_predictions
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results

twin = pytest.importorskip("sklearn.metrics")


def shown_of(folder: Path, **options):
    (results,) = collect_results(find_runs(folder), **options)
    return shown_predictions(results)


def test_the_tables_count_what_scikit_learn_counts(tmp_path):
    shown = shown_of(write_runs(tmp_path))
    assert shown.method == "SWAD"
    assert set(shown.images["split"]) == {"in"}
    assert dict(shown.images.groupby("domain", observed=True).size()) == {"clinic": 40, "lab": 40}
    labels, predictions = (shown.images[name].astype(str) for name in ("label", "prediction"))
    np.testing.assert_array_equal(shown.confusion, twin.confusion_matrix(labels, predictions, labels=CLASSES))
    precision, recall, f1, n = twin.precision_recall_fscore_support(labels, predictions, labels=CLASSES)
    for row, *numbers in zip(class_table(shown).rows, n, 100 * recall, 100 * precision, 100 * f1, strict=True):
        assert [cell.value for cell in row.cells[:4]] == pytest.approx(numbers)
    expected = 100 * twin.confusion_matrix(labels, predictions, labels=CLASSES, normalize="true")
    matrix = confusion_table(shown)
    assert matrix.columns == CLASSES
    np.testing.assert_allclose([[cell.value for cell in row.cells] for row in matrix.rows], expected)
    assert max(cell.shade for row in matrix.rows for cell in row.cells) <= 0.6


def test_the_worst_group_is_named(tmp_path):
    shown = shown_of(write_runs(tmp_path))
    table = class_table(shown)
    assert table.columns[-2:] == ("clinic", "lab")
    values = {
        (row.name, name): cell.value
        for row in table.rows
        for name, cell in zip(("clinic", "lab"), row.cells[-2:], strict=True)
    }
    label, domain = min(values, key=values.__getitem__)
    assert table.notes[-1] == f"Worst group: {label} in {domain}, {values[label, domain]:.1f} %."


def test_mistakes_come_by_their_probability_and_each_image_once(tmp_path):
    shown = shown_of(write_runs(tmp_path, trials=2))
    mistakes = shown.mistakes(5)
    wrong = shown.images[shown.images["label"] != shown.images["prediction"]]
    assert mistakes["probability"].iloc[0] == wrong["probability"].max()
    assert mistakes["probability"].is_monotonic_decreasing
    assert not mistakes.duplicated(["domain", "image"]).any()
    assert len(shown.mistakes(1000)) == len(wrong.drop_duplicates(["domain", "image"]))


def test_without_swad_the_method_with_the_highest_score_is_shown(tmp_path):
    shown = shown_of(write_runs(tmp_path, weights=("best", "ema")))
    assert shown.method == "EMA"


@pytest.mark.parametrize("target", [True, False])
def test_the_images_are_those_of_the_reported_accuracy(target, tmp_path):
    write_runs(tmp_path, has_target=target)
    (results,) = collect_results(find_runs(tmp_path))
    shown = shown_predictions(results)
    right = (shown.images["label"] == shown.images["prediction"]).groupby(shown.images["domain"], observed=True).mean()
    if target:
        assert right.to_dict() == pytest.approx(
            {target: value for (target, _), value in results.accuracies("SWAD").items()}
        )
    else:
        assert set(shown.images["split"]) == {"out"}
        assert right.mean() == pytest.approx(results.accuracies("SWAD")["none", 0])


def test_the_whole_target_is_its_splits(tmp_path):
    assert set(shown_of(write_runs(tmp_path), split="full").images["split"]) == {"in", "out"}


def test_runs_without_predictions_are_counted(tmp_path):
    write_runs(tmp_path)
    (tmp_path / "lab-0" / PREDICTIONS).unlink()
    assert shown_of(tmp_path).lead == "SWAD on clinic: 40 predictions of 1 run. 1 run kept no predictions."
    (tmp_path / "clinic-0" / PREDICTIONS).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"cannot read .*predictions.npz"):
        assert shown_of(tmp_path) is None


def test_with_many_classes_the_matrix_has_those_with_the_most_mistakes(tmp_path, monkeypatch):
    monkeypatch.setattr("swad.testbed.results.mistakes.MAX_MATRIX", 2)
    shown = shown_of(write_runs(tmp_path))
    counts = shown.confusion
    n_wrong = counts.sum(axis=1) - counts.to_numpy().diagonal()
    matrix = confusion_table(shown)
    assert set(matrix.columns) == set(n_wrong.nlargest(2).index)
    assert matrix.notes[0].endswith("The 2 of 3 classes with the most mistakes.")
    assert len(class_table(shown).rows) == 3
    assert len(read_predictions(tmp_path / "lab-0")) > 0
