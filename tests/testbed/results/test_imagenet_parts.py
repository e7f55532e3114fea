"""Results on ImageNet's benchmarks as the page reads them from runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from swad.testbed.results.corruption_means import CORRUPTIONS
from swad.testbed.results.imagenet_parts import BENCHMARK, ImageNetC, PartResult, read_stored_values
from swad.testbed.results.measured_report import report
from swad.testbed.results.measurement_rows import ROBUSTNESS, RowFile
from swad.testbed.results.run_data import RunData


def measured(root: Path, weights: str, errors: dict[str, float], trial: int = 0, **changes: object) -> RunData:
    """A run of the imagenet recipe whose weights were evaluated on parts."""
    root.mkdir(exist_ok=True)
    row = {"kind": BENCHMARK, "key": "k", "weights": weights, "fingerprint": "f", "expected": 100, "missing": []}
    with RowFile(root, ROBUSTNESS) as file:
        file.append(
            *(
                {**row, "part": part, "n": 100, "correct": round(100 * (1 - error)), **changes}
                for part, error in errors.items()
            )
        )
    config = {"algorithm": "erm", "trial": trial, "lr_schedule": "decay", "recipe": "imagenet"}
    return RunData(root, config, (), True)


def curve(values: pd.DataFrame, method: str) -> dict[int, float]:
    means = report(values, ImageNetC).means
    rows = means[means["method"] == method].set_index("quantity")["mean"]
    return {severity: mean for severity, mean in rows.items() if not isinstance(severity, str)}


def is_partial(values: pd.DataFrame) -> bool:
    return "Partial: do not compare it with published numbers." in report(values, ImageNetC).tables[0].notes[0]


BLUR = {"imagenet-c/zoom_blur/1": 0.2, "imagenet-c/zoom_blur/5": 0.6}


def test_errors_of_runs_on_imagenet_c(tmp_path):
    runs = [
        measured(tmp_path / "a", "swad", {"imagenet": 0.1, **BLUR}),
        measured(tmp_path / "b", "last", {"imagenet": 0.2, **BLUR, "imagenet-c/saturate/1": 0.9, "imagenet-r": 0.7}),
        measured(tmp_path / "c", "last", {"imagenet": 0.4, **BLUR}, trial=1),
    ]
    values = read_stored_values(runs)
    assert curve(values, "ERM (last)") == pytest.approx({0: 0.3, 1: 0.2, 5: 0.6})
    table, compared = report(values, ImageNetC).tables
    assert [row.name for row in table.rows] == ["ERM (last)", "SWAD"]  # the others are compared with ERM
    assert table.columns == ("Clean", "Corrupted", "Added", "blur")
    assert [cell.value for cell in table.rows[1].cells] == pytest.approx([10, 40, 30, 40])
    assert "the stored images of ImageNet-C" in table.notes[0]
    assert is_partial(values)
    assert compared.title == "Compared with ERM (last): ImageNet-C, partial, stored"


def test_all_15_corruptions_at_all_severities_are_complete(tmp_path):
    parts = {f"imagenet-c/{name}/{severity}": 0.5 for name in CORRUPTIONS for severity in range(1, 6)}
    assert not is_partial(read_stored_values([measured(tmp_path / "a", "swad", parts)]))
    assert is_partial(read_stored_values([measured(tmp_path / "b", "swad", parts, expected=101)]))
    parts.popitem()
    assert is_partial(read_stored_values([measured(tmp_path / "c", "swad", parts)]))


def test_without_imagenet_itself_there_is_no_clean_error(tmp_path):
    values = read_stored_values([measured(tmp_path / "a", "swad", BLUR)])
    assert curve(values, "SWAD") == pytest.approx({1: 0.2, 5: 0.6})
    # A model of other classes than those of the images has no error.
    assert read_stored_values([measured(tmp_path / "b", "swad", BLUR, n=0, correct=0)]).empty
    assert report(values, ImageNetC).tables[0].columns == ("Corrupted", "blur")
    assert read_stored_values([measured(tmp_path / "b", "swad", {"imagenet": 0.1})]).empty


@pytest.mark.parametrize("change", [{"key": "other"}, {"fingerprint": "other"}])
def test_results_of_other_settings_or_weights_are_not_mixed(tmp_path, change):
    measured(tmp_path / "a", "swad", BLUR)
    run = measured(tmp_path / "a", "swad", {"imagenet-c/fog/1": 0.5}, **change)
    assert curve(read_stored_values([run]), "SWAD") == {1: 0.5}


def test_a_part_with_other_than_the_published_images_is_partial():
    assert PartResult(40, 50, 100).partial
    assert not PartResult(40, 50, 50).partial
    assert PartResult(40, 50, 50).error == pytest.approx(0.2)
