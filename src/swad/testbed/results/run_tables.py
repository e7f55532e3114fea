"""Tables of runs: those that were selected, the ranges that they averaged, and their timings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from swad.testbed.results.labels import (
    algorithm_label,
    differing_hyperparameters,
    directory_names,
    weights_label,
)
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList, once
from swad.testbed.results.selection import DatasetResults
from swad.testbed.results.tables import Cell, Row, Table
from swad.testbed.results.training_curves import final_values, valleys


@once
def selected_runs_table(results: DatasetResults) -> Table:
    """Build the table of selected runs: directory, step and differing hyperparameters behind every result."""
    groups: dict[tuple[str, int, int, int], list[str]] = {}
    for row in results.results.itertuples():
        step = f"(best, step {row.weights_step:,})"
        label = row.method if row.weights_step == row.step else row.method.replace("(best)", step)
        groups.setdefault((row.target, row.trial, row.run, row.step), []).append(label)
    names = dict(zip((run.path for run in results.members), directory_names(results.members), strict=True))
    columns = differing_hyperparameters(results.members)
    rows = [
        Row(
            f"{target}, trial {trial}",
            (
                Cell(text=", ".join(labels)),
                Cell(text=names[results.runs[run].path]),
                Cell(step, decimals=0),
                *(Cell(text=results.runs[run].compared_settings.get(column, "–")) for column in columns),
            ),
        )
        for (target, trial, run, step), labels in sorted(groups.items(), key=lambda item: item[0][:2])
    ]
    return Table(
        f"Selected runs: {results.dataset}",
        ("Methods", "Run", "Evaluated at step", *columns),
        tuple(rows),
        corner="Target",
    )


def ranges_table(runs: Iterable[RunData], shown: Collection[int] | None = None) -> Table:
    """Build the table of averaged ranges: first and last step, number of weights, and threshold.

    Args:
        runs: The runs.
        shown: The places of those to show; by default all.
    """
    runs = RunList.of(runs)
    found = [(run, by_average) for run, by_average in zip(runs, valleys(runs), strict=True)]
    found = [each for number, each in enumerate(found) if each[1] and (shown is None or number in shown)]
    names, identify = _identifying_columns([run for run, _ in found])
    rows = []
    for index, (run, by_average) in enumerate(found):
        for average, averaged in by_average.items():
            threshold = Cell(text="none") if averaged.threshold is None else Cell(averaged.threshold, decimals=4)
            steps = (Cell(value, decimals=0) for value in (averaged.start, averaged.end, averaged.n_averaged))
            label = Cell(text=weights_label(run, average))
            rows.append(Row(f"{run.target}, trial {run.trial}", (label, *identify[index], *steps, threshold)))
    columns = ("Average", *names, "First step", "Last step", "Weights", "Threshold")
    return Table("Averaged range", columns, tuple(rows), corner="Target")


def timings_table(runs: Iterable[RunData]) -> Table:
    """Build the table of timings: the total, a step, and the evaluations of every run."""
    runs = RunList.of(runs)
    names, identify = _identifying_columns(runs)
    rows = []
    seconds = [final_values(runs, metric) for metric in ("seconds_total", "seconds_per_step", "seconds_evaluation")]
    for run, identity, total, step, evaluation in zip(runs, identify, *seconds, strict=True):
        share = 100 * evaluation / total if total and evaluation is not None else None
        cells = (Cell(total), Cell(None if step is None else 1000 * step), Cell(evaluation), Cell(share))
        label = Cell(text=algorithm_label(run.algorithm))
        rows.append(Row(f"{run.target}, trial {run.trial}", (label, *identity, *cells)))
    columns = ("Algorithm", *names, "Total, s", "Step, ms", "Evaluation, s", "Evaluation, %")
    return Table("Timings", columns, tuple(rows), corner="Target")


def _identifying_columns(runs: Sequence[RunData]) -> tuple[list[str], list[list[Cell]]]:
    """Return columns that distinguish runs with the same algorithm, target and trial, and their cells by run.

    These are the dataset and the differing hyperparameters, and the run directory if runs agree in all of them.
    """
    keys = [(run.algorithm, run.targets, run.trial) for run in runs]
    if len(set(keys)) == len(keys):
        return [], [[] for _ in runs]
    names, columns = [], []
    if len({run.dataset for run in runs}) > 1:
        names.append("Dataset")
        columns.append([run.dataset for run in runs])
    for name in differing_hyperparameters(runs):
        names.append(name)
        columns.append([run.compared_settings.get(name, "–") for run in runs])
    if len(set(zip(keys, *columns, strict=True))) < len(runs):
        names.append("Run")
        columns.append(directory_names(runs))
    return names, [[Cell(text=column[index]) for column in columns] for index in range(len(runs))]
