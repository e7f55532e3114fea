"""The public names of `swad.results`."""

import importlib.util
from pathlib import Path

import pytest

import swad
from helpers.imports import modules_after
from swad.results.runs import RunList

HAS_PANDAS = importlib.util.find_spec("pandas") is not None


def test_the_names_work_after_import_swad(tree: Path) -> None:
    runs = swad.results.find_runs(tree)
    results = swad.results.select(runs, "iid", "swad")
    assert len(results) == len(runs)
    assert "SWAD" in swad.results.results_table(runs).text()
    assert all(getattr(swad.results, name) for name in swad.results.__all__)
    assert set(swad.results.__all__) == set(dir(swad.results))
    with pytest.raises(AttributeError, match="no attribute 'find_run'"):
        swad.results.find_run  # noqa: B018


def test_reading_results_needs_no_torch(tree: Path) -> None:
    code = f"import swad\nruns = swad.results.find_runs({str(tree)!r})\nswad.results.select(runs, 'iid', 'swad')"
    assert not modules_after(f"{code}\nswad.results.results_table(runs)") & {"torch", "matplotlib", "pandas"}


@pytest.mark.skipif(HAS_PANDAS, reason="pandas is installed")
def test_data_frames_without_pandas_name_the_package(runs: RunList) -> None:
    results = swad.results.select(runs, "iid", "swad")
    for frame in (runs.to_frame, runs[0].to_frame, results.to_frame):
        with pytest.raises(ImportError, match=r"^data frames need pandas: pip install pandas$"):
            frame()


@pytest.mark.skipif(not HAS_PANDAS, reason="needs pandas")
def test_data_frames_hold_every_record_and_result(runs: RunList) -> None:
    frame = runs.to_frame()
    assert len(frame) == sum(len(run.records) for run in runs)
    assert {"directory", "dataset", "trial", "metric", "value"} <= set(frame.columns)
    assert len(runs[0].to_frame()) == len(runs[0].records)
    results = swad.results.select(runs, "iid", "swad")
    selected = results.to_frame()
    assert list(selected["accuracy"]) == [result.accuracy for result in results]
    assert set(selected["hyperparameter.lr"]) == {5e-05}
