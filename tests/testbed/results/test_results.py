"""The public names of `swad.testbed.results`."""

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path

import pytest

import swad
from helpers.imports import modules_after
from swad.testbed.results.records import Record
from swad.testbed.results.runs import RunList

HAS_PANDAS = importlib.util.find_spec("pandas") is not None


def test_the_names_work_after_import_swad(tree: Path) -> None:
    runs = swad.testbed.results.find_runs(tree)
    results = swad.testbed.results.select(runs, "iid", "swad")
    assert len(results) == len(runs)
    assert "SWAD" in swad.testbed.results.results_table(runs).text()
    assert all(getattr(swad.testbed.results, name) for name in swad.testbed.results.__all__)
    assert set(swad.testbed.results.__all__) == set(dir(swad.testbed.results))
    with pytest.raises(AttributeError, match="no attribute 'find_run'"):
        swad.testbed.results.find_run  # noqa: B018


def test_reading_results_needs_no_torch(tree: Path) -> None:
    code = f"from swad.testbed import results\nruns = results.find_runs({str(tree)!r})\nresults.results_table(runs)"
    assert not modules_after(f"{code}\nresults.select(runs, 'iid', 'swad')") & {"torch", "matplotlib", "pandas"}


def test_data_frames_without_pandas_name_the_package(runs: RunList, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    results = swad.testbed.results.select(runs, "iid", "swad")
    for frame in (runs.to_frame, runs[0].to_frame, results.to_frame):
        with pytest.raises(ImportError, match=r"^data frames need pandas: pip install pandas$"):
            frame()


@pytest.mark.skipif(not HAS_PANDAS, reason="needs pandas")
def test_data_frames_hold_every_record_and_result(runs: RunList) -> None:
    frame = runs.to_frame()
    assert list(frame.columns[:5]) == ["directory", "dataset", "algorithm", "targets", "trial"]
    assert len(frame) == sum(len(run.records) for run in runs)
    for run, (directory, rows) in zip(runs, frame.groupby("directory", sort=False), strict=True):
        assert directory == str(run.path)
        assert set(rows["trial"]) == {run.trial}
        assert set(rows["targets"]) == {run.targets}
        assert [
            Record(*(None if isinstance(v, float) and math.isnan(v) else v for v in row))
            for row in rows[[field.name for field in dataclasses.fields(Record)]].itertuples(index=False)
        ] == list(run.records)
    # What pandas is for: the mean over trials of SWAD on each target is the table's.
    accuracy = frame.query("metric == 'accuracy' and average == 'swad' and split == 'in'")
    means = accuracy.groupby("domain")["value"].mean()
    row = next(row for row in swad.testbed.results.results_table(runs).rows if row.name == "SWAD")
    assert [100 * means[target] for target in sorted(means.index)] == pytest.approx([c.value for c in row.cells[:4]])


@pytest.mark.skipif(not HAS_PANDAS, reason="needs pandas")
def test_frames_of_one_run_of_results_and_of_nothing(runs: RunList) -> None:
    one = runs[0].to_frame()
    assert list(one.columns) == [field.name for field in dataclasses.fields(Record)]
    assert list(one["value"]) == [record.value for record in runs[0].records]
    results = swad.testbed.results.select(runs, "iid", "swad")
    selected = results.to_frame()
    assert list(selected["accuracy"]) == [result.accuracy for result in results]
    assert list(selected["step"]) == [result.step for result in results]
    assert list(selected["directory"]) == [str(result.directory) for result in results]
    assert set(selected["hyperparameter.lr"]) == {5e-05}
    assert selected.pivot(index="target", columns="trial", values="accuracy").shape == (4, 2)
    for empty in (
        RunList().to_frame(),
        swad.testbed.results.Selection().to_frame(),
        swad.testbed.results.records_frame([]),
    ):
        assert len(empty) == 0
        assert len(empty.columns) >= 7
