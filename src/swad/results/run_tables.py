"""Tables of runs: accuracy on every target next to the paper's numbers, averaged ranges, and timings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from swad.results import published
from swad.results.labels import LIVE_WEIGHTS, algorithm_label, method_label
from swad.results.runs import RunData
from swad.results.selection import SelectionError, TargetResult, select, source_accuracy
from swad.results.tables import PAPER, Cell, Row, Table, mark_best
from swad.results.training_curves import final_value, valley, valley_averages
from swad.util.statistics import Summary, summarize

PaperRows = Literal["few", "all", "none"]
"""The paper's rows to show: ERM, SWAD and those with the name of one of ours; all; none."""

SELECTIONS = {
    "iid": "source validation accuracy (iid)",
    "last": "last step",
    "lodo": "accuracy on a second held-out source (lodo)",
    "oracle": "target validation accuracy at the last step (oracle)",
    "oracle_best_step": "target validation accuracy at any step (oracle_best_step)",
}
SPLITS = {"in": "training part", "out": "validation part", "full": "whole", "test": "test part"}


def evaluated_averages(runs: Iterable[RunData], method: str = "iid") -> list[str | None]:
    """Return the names of the weights that were evaluated on the targets: live weights first, SWAD last.

    None stands for the live weights at the step that `method` selects. They get a row of their own only with
    "oracle_best_step", or if the runs have neither `best` nor `last`.
    """
    names: dict[str | None, None] = {}
    for run in runs:
        for record in run.records:
            if record.metric == "accuracy" and record.domain in run.targets:
                names[record.average] = None
    if method != "oracle_best_step" and any(name in names for name in LIVE_WEIGHTS):
        names.pop(None, None)

    def order(name: str | None) -> int:
        if name is None or name in LIVE_WEIGHTS:
            return 0
        return 2 if name.startswith("swad") else 1

    return sorted(names, key=order)


def accuracy_tables(
    runs: Sequence[RunData], method: str = "iid", *, split: str = "in", paper: PaperRows = "few"
) -> list[Table]:
    """Build one table per dataset: the accuracy in percent of every algorithm and average on every target.

    Args:
        runs: The runs, of any datasets.
        method: The model selection; see `swad.results.selection`.
        split: The part of the target to report: "in", "out", "full" or "test".
        paper: Which of the paper's rows follow ours: the "few" that ours compare with, "all" or "none".
    """
    by_dataset: dict[str, list[RunData]] = {}
    for run in runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    return [_accuracy_table(dataset, members, method, split, paper) for dataset, members in by_dataset.items()]


def _accuracy_table(dataset: str, runs: Sequence[RunData], method: str, split: str, paper: PaperRows) -> Table:
    targets = sorted({run.targets[0] for run in runs if len(run.targets) == 1})
    our_rows, errors = _our_rows(runs, targets, method, split)
    rows = mark_best(our_rows)
    if paper != "none":
        published_rows = _published_rows(dataset, targets)
        if paper == "few":
            names = _comparable_names(our_rows, runs)
            published_rows = [row for row in published_rows if row.name.rstrip("†‡") in names]
        rows += mark_best(published_rows)
    caption = (
        f"Accuracy in % on the {SPLITS.get(split, split)} of the target, selected by "
        f"{SELECTIONS.get(method, method)}; {_describe_trials(runs)}. "
        "In-domain: mean over the held-out splits of the sources."
    )
    notes = [f"Not shown: {', '.join(methods)}: {error}." for error, methods in errors.items()]
    if not targets:
        notes.append("No run holds out a single domain. Runs that hold out two domains serve the selection lodo.")
    if method == "oracle_best_step" and not any(None in evaluated_averages([run], method) for run in runs):
        notes.append("No step can be selected: train with --target-every-evaluation to evaluate the target at each.")
    if any("†" in row.name or "‡" in row.name for row in rows):
        notes.append("Rows of the paper: † from DomainBed’s search, ‡ from the paper’s own.")
    return Table(dataset, (*targets, "Avg.", "In-domain"), rows, (caption, *notes))


def _our_rows(
    runs: Sequence[RunData], targets: Sequence[str], method: str, split: str
) -> tuple[list[Row], dict[str, list[str]]]:
    """Build a row for each algorithm and average, and collect what could not be selected by error message."""
    rows: list[Row] = []
    errors: dict[str, list[str]] = {}
    # ERM comes first, because the other algorithms are compared with it.
    for algorithm in sorted(dict.fromkeys(run.algorithm for run in runs), key=lambda name: name != "erm"):
        members = [run for run in runs if run.algorithm == algorithm]
        for average in evaluated_averages(members, method):
            label = method_label(algorithm, average)
            results: list[TargetResult] = []
            for target in targets:
                try:
                    results += select(members, method, average, split=split, targets=[target])
                except SelectionError as error:
                    errors.setdefault(str(error), []).append(f"{label} on {target}")
            if results:
                rows.append(Row(label, _accuracy_cells(results, targets, average)))
    return rows, errors


def _accuracy_cells(results: Sequence[TargetResult], targets: Sequence[str], average: str | None) -> tuple[Cell, ...]:
    cells = []
    for target in targets:
        accuracies = [result.accuracy for result in results if result.target == target]
        cells.append(_percent(summarize(accuracies)) if accuracies else Cell())
    cells.append(_mean_over_targets({(r.target, r.trial): r.accuracy for r in results}, targets))
    in_domain = {
        (r.target, r.trial): source_accuracy(r.run, average, r.step if average is None else None) for r in results
    }
    cells.append(_mean_over_targets({key: value for key, value in in_domain.items() if value is not None}, targets))
    return tuple(cells)


def _mean_over_targets(accuracies: dict[tuple[str, int], float], targets: Sequence[str]) -> Cell:
    """Average over targets within each trial, then over trials, so that the error is that of the table's mean."""
    if {target for target, _ in accuracies} != set(targets):
        return Cell()  # a mean over some of the targets would not be comparable with one over all
    trials = sorted({trial for _, trial in accuracies})
    if all((target, trial) in accuracies for target in targets for trial in trials):
        by_trial = [summarize(accuracies[target, trial] for target in targets).mean for trial in trials]
        return _percent(summarize(by_trial))
    by_target = [summarize(v for (name, _), v in accuracies.items() if name == target).mean for target in targets]
    return Cell(100 * math.fsum(by_target) / len(by_target))


def _percent(summary: Summary) -> Cell:
    return Cell(100 * summary.mean, None if summary.error is None else 100 * summary.error)


def _describe_trials(runs: Iterable[RunData]) -> str:
    trials: dict[tuple[str, tuple[str, ...]], set[int]] = {}
    for run in runs:
        trials.setdefault((run.algorithm, run.targets), set()).add(run.trial)
    counts = {len(numbers) for numbers in trials.values()}
    if counts == {1}:
        return "one trial"
    up_to = "" if len(counts) == 1 else "up to "
    return f"mean ± standard error over {up_to}{max(counts)} trials"


def _comparable_names(rows: Sequence[Row], runs: Sequence[RunData]) -> set[str]:
    """Return the names of the paper's methods that our rows can be compared with."""
    names = {"ERM", "SWAD", *(row.name for row in rows), *(algorithm_label(run.algorithm) for run in runs)}
    if "SWA" in names:
        names |= {"SWA w/ cyclic" if run.config.get("lr_schedule") == "cyclic" else "SWA w/ const" for run in runs}
    return names


def _published_rows(dataset: str, targets: Sequence[str]) -> list[Row]:
    published_targets = published.targets(dataset)
    rows = []
    for row in published_targets:
        if not any(target in row.cells for target in targets):
            continue
        numbers = [row.cells.get(target) for target in targets]
        # The paper's average is over all targets, and would mislead next to ours over fewer.
        numbers.append(row.average if set(row.cells) == set(targets) else None)
        cells = [Cell() if number is None else Cell(number.value, number.error) for number in numbers]
        rows.append(Row(row.name, (*cells, Cell()), PAPER))
    if any(set(row.cells) == set(targets) for row in published_targets):
        for row in published.averages(dataset):
            assert row.average is not None
            average = Cell(row.average.value, row.average.error)
            rows.append(Row(row.name, (*(Cell() for _ in targets), average, Cell()), PAPER))
    return rows


def ranges_table(runs: Iterable[RunData]) -> Table:
    """Build the table of averaged ranges: first and last step, number of weights, and threshold."""
    rows = []
    for run in runs:
        for average in valley_averages(run):
            averaged = valley(run, average)
            if averaged is None:
                continue
            threshold = Cell(text="none") if averaged.threshold is None else Cell(averaged.threshold, decimals=4)
            steps = (_count(value) for value in (averaged.start, averaged.end, averaged.n_averaged))
            rows.append(
                Row(_target_and_trial(run), (Cell(text=method_label(run.algorithm, average)), *steps, threshold))
            )
    columns = ("Average", "First step", "Last step", "Weights", "Threshold")
    return Table("Averaged range", columns, tuple(rows), corner="Target")


def timings_table(runs: Iterable[RunData]) -> Table:
    """Build the table of timings: the total, a step, and the evaluations of every run."""
    rows = []
    for run in runs:
        total, step, evaluation = (
            final_value(run, metric) for metric in ("seconds_total", "seconds_per_step", "seconds_evaluation")
        )
        share = 100 * evaluation / total if total and evaluation is not None else None
        cells = (Cell(total), Cell(None if step is None else 1000 * step), Cell(evaluation), Cell(share))
        rows.append(Row(_target_and_trial(run), (Cell(text=algorithm_label(run.algorithm)), *cells)))
    columns = ("Algorithm", "Total, s", "Step, ms", "Evaluation, s", "Evaluation, %")
    return Table("Timings", columns, tuple(rows), corner="Target")


def _count(value: int | None) -> Cell:
    return Cell() if value is None else Cell(value, decimals=0)


def _target_and_trial(run: RunData) -> str:
    return f"{'+'.join(run.targets)}, trial {run.trial}"
