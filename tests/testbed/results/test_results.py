"""The public names of `swad.testbed.results`."""

from pathlib import Path

import pytest

import swad
from helpers.imports import modules_after
from swad.testbed.results.frames import COLUMNS
from swad.testbed.results.records import LIVE, read_records
from swad.testbed.results.runs import RunList
from swad.testbed.results.selection import RESULTS


def test_the_names_work_after_import_swad(tree: Path) -> None:
    runs = swad.testbed.results.find_runs(tree)
    results = swad.testbed.results.select(runs, "iid", "swad")
    assert tuple(results.columns) == RESULTS
    assert len(results) == len(runs)
    assert "SWAD" in swad.testbed.results.results_table(runs).text()
    assert all(getattr(swad.testbed.results, name) for name in swad.testbed.results.__all__)
    assert set(swad.testbed.results.__all__) == set(dir(swad.testbed.results))
    with pytest.raises(AttributeError, match="no attribute 'find_run'"):
        swad.testbed.results.find_run  # noqa: B018


def test_reading_results_needs_no_torch(tree: Path) -> None:
    code = f"from swad.testbed import results\nruns = results.find_runs({str(tree)!r})\nresults.results_table(runs)"
    assert not modules_after(f"{code}\nresults.select(runs, 'iid', 'swad')") & {"torch", "matplotlib"}


def test_data_frames_hold_every_record_and_run(runs: RunList) -> None:
    assert tuple(runs.records.columns) == COLUMNS
    assert list(runs.frame.path) == [str(run.path) for run in runs]
    assert list(runs.frame.trial) == [run.trial for run in runs]
    by_run = runs.records.astype(dict.fromkeys(("domain", "split", "metric", "weights"), object)).groupby("run")
    for number, rows in by_run:
        rows = rows.where(rows.notna(), None)
        assert [tuple(row) for row in rows.drop(columns="run").itertuples(index=False)] == [
            (r.step, r.domain, r.split, r.metric, LIVE if r.average is None else r.average, r.value)
            for r in read_records(runs[number].path)
        ]
    # What frames are for: the mean over trials of SWAD on each target is the table's.
    accuracy = runs.records.query("metric == 'accuracy' and weights == 'swad' and split == 'in'")
    means = accuracy.groupby("domain", observed=True)["value"].mean()
    row = next(row for row in swad.testbed.results.results_table(runs).rows if row.name == "SWAD")
    assert [100 * means[target] for target in sorted(means.index)] == pytest.approx([c.value for c in row.cells[:4]])


def test_frames_of_one_run_and_of_nothing(runs: RunList) -> None:
    assert runs[0].frame.value.tolist() == [record.value for record in read_records(runs[0].path)]
    joined = RunList(runs[:2]).records.astype(object)
    assert joined.equals(runs.records[runs.records.run < 2].astype(object))
    assert tuple(RunList().records.columns) == COLUMNS
    assert RunList().records.empty
