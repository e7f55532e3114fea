import re
from pathlib import Path

from helpers.run_tree import write_run
from swad.testbed.results.records import read_records
from swad.testbed.results.run_data import RunData
from swad.testbed.results.run_tables import ranges_table, selected_runs_table, timings_table
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results
from swad.testbed.results.training_curves import valleys


def test_the_selected_runs_are_shown_with_differing_hyperparameters(tmp_path: Path) -> None:
    for lr in (1e-5, 5e-5):
        for trial in (0, 1):
            write_run(tmp_path / f"lr-{lr}" / f"photo-{trial}", lr=lr, trial=trial)
    (results,) = collect_results(find_runs(tmp_path))
    table = selected_runs_table(results)
    assert table.columns == ("Methods", "Run", "Evaluated at step", "lr")
    shown = {
        (row.name, re.sub(r", step .*\)", ")", label)): row
        for row in table.rows
        for label in re.split(r", (?!step)", row.cells[0].printed)
    }
    best = [row.cells[0].printed for row in table.rows if "ERM (best" in row.cells[0].printed]
    assert len(best) == 2
    assert all(
        re.search(r"ERM \(best, step [\d,]+\)", text) for text in best
    )  # before the last step, where it is evaluated
    for result in results.results.itertuples():
        run = results.runs[result.run]
        row = shown[f"photo, trial {result.trial}", result.method]
        assert row.cells[1].printed == str(run.path.relative_to(tmp_path))
        assert row.cells[3].printed == str(run.hyperparameters["lr"])


def test_ranges_and_timings(runs: list[RunData], faulty: list[RunData]) -> None:
    table = ranges_table(runs)
    state = valleys(runs)[0]["swad"]
    assert [cell.value for cell in table.rows[0].cells[1:4]] == [state.start, state.end, state.n_averaged]
    never = next(row for row in ranges_table(faulty).rows if row.name.startswith("sketch"))
    assert never.cells[-1].printed == "none"
    assert timings_table(runs).rows[0].cells[1].value == next(
        record.value for record in read_records(runs[0].path) if record.metric == "seconds_total"
    )
    unfinished = next(row for row in timings_table(faulty).rows if row.name.startswith("photo"))
    assert unfinished.cells[timings_table(faulty).columns.index("Total, s")].printed == "–"


def test_ranges_are_distinct(tmp_path: Path) -> None:
    write_run(tmp_path / "a", lr=1e-5)
    write_run(tmp_path / "b", lr=5e-5)
    table = ranges_table(find_runs(tmp_path))
    assert table.columns[:2] == ("Average", "lr")
    assert [row.cells[1].printed for row in table.rows] == ["1e-05", "5e-05"]
    write_run(tmp_path / "c", lr=5e-5)
    write_run(tmp_path / "d", dataset="VLCS", lr=5e-5)
    for build in (ranges_table, timings_table):
        table = build(find_runs(tmp_path))
        assert table.columns[1:4] == ("Dataset", "lr", "Run")
        labels = [(row.name, *(cell.printed for cell in row.cells[:4])) for row in table.rows]
        assert len(set(labels)) == 4
