"""The accuracy of every method on every target, next to the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from swad.testbed.results import published
from swad.testbed.results.compare import means
from swad.testbed.results.labels import algorithm_label, base_algorithm
from swad.testbed.results.metrics import get_metric
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import once
from swad.testbed.results.selection import ORACLES, DatasetResults, collect_results
from swad.testbed.results.tables import PAPER, Cell, Row, Table, mean_cell
from swad.testbed.results.unit_tables import legend, mark_column
from swad.util.grouping import group_by
from swad.util.statistics import mean

if TYPE_CHECKING:
    import pandas as pd

PaperRows = Literal["few", "all", "none"]
"""The paper's rows to show: ERM, SWAD and those with the name of one of ours; all; none."""

Unit = tuple[str, int]
"""Target and trial."""

SELECTIONS = {
    "iid": "source validation {metric} (iid)",
    "last": "last step",
    "lodo": "{metric} on a second held-out source (lodo)",
    "oracle": "target validation {metric} at the last step (oracle)",
    "oracle_best_step": "target validation {metric} at any step (oracle_best_step)",
}
AVERAGE = "Avg."
"""The column of means over targets."""
MISSING = "*"
"""Mark of a mean that lacks a target."""


def split_label(split: str, runs: Iterable[RunData]) -> str:
    """Describe a split of the held-out domain with its share of the images.

    >>> split_label("in", []), split_label("full", [])
    ('in split (80 %) of the held-out domain', 'whole held-out domain')
    """
    if split == "full":
        return "whole held-out domain"
    layouts = {str(run.config.get("split", "80/20")) for run in runs} or {"80/20"}
    shares = {dict(zip(("in", "out", "test"), layout.split("/"), strict=False)).get(split) for layout in layouts}
    share = shares.pop() if len(shares) == 1 else None
    return f"{split} split{f' ({share} %)' if share else ''} of the held-out domain"


def accuracy_tables(
    runs: Sequence[RunData],
    method: str = "iid",
    *,
    split: str = "in",
    paper: PaperRows = "few",
    allow_missing_targets: bool = False,
) -> list[Table]:
    """Build one table per dataset: the accuracy in percent of every algorithm and average on every target.

    Args:
        runs: The runs, of any datasets.
        method: The model selection; see `swad.testbed.results.selection`.
        split: The split of the held-out domain to report: "in", "out", "full" or "test".
        paper: Which of the paper's rows follow ours: the "few" that ours compare with, "all" or "none".
        allow_missing_targets: Show means that lack a target, with a mark. By default there is no mean then.
    """
    return [accuracy_table(results, paper, allow_missing_targets) for results in collect_results(runs, method, split)]


def results_table(
    runs: Sequence[RunData],
    method: str = "iid",
    *,
    split: str = "in",
    paper: PaperRows = "few",
    allow_missing_targets: bool = False,
) -> Table:
    """Build the accuracy table of runs on one dataset. The arguments are those of `accuracy_tables`."""
    tables = accuracy_tables(runs, method, split=split, paper=paper, allow_missing_targets=allow_missing_targets)
    if len(tables) != 1:
        names = ", ".join(table.title for table in tables) or "none"
        raise ValueError(f"a table needs runs on one dataset, got {names}: filter the runs, or use accuracy_tables")
    return tables[0]


def accuracy_table(results: DatasetResults, paper: PaperRows = "few", allow_missing_targets: bool = False) -> Table:
    """Build the accuracy table of one dataset; see `accuracy_tables`."""
    runs, targets = results.members, results.targets
    ours, error = _our_rows(results, allow_missing_targets)
    rows = [*ours]
    if paper != "none" and results.has_target and results.metric == "accuracy":
        published_rows = _published_rows(results.dataset, targets)
        rows += published_rows if paper == "all" else comparable_rows(published_rows, rows, runs)
    notes = [_caption(results)]
    if marks := legend(rows, error):
        notes.append(marks)
    if results.selection in ORACLES:
        notes.append("This selection looks at the held-out domain, so its accuracies do not estimate an unseen one.")
    notes += [f"Not in the table: {entry.name}: {entry.reason}." for entry in results.skipped]
    notes += _missing_notes(results, allow_missing_targets)
    if not targets:
        notes.append("No run holds out a single domain. Runs that hold out two domains serve the selection lodo.")
    if results.selection == "oracle_best_step" and not results.has_live:
        notes.append("No step can be selected: train with --target-every-evaluation to evaluate the target at each.")
    if any("†" in row.name or "‡" in row.name for row in rows):
        notes.append("Rows of the paper: † from DomainBed’s search, ‡ from the paper’s own.")
    if any(row.group == PAPER for row in rows) and any(run.config.get("split", "80/20") != "80/20" for run in runs):
        notes.append(
            "The paper’s rows have 80/20 splits, and runs of ours do not: compare 60/20/20 with its Tables 3 and 5 "
            "(swad reproduce)."
        )
    columns = (*targets, AVERAGE, "In-domain") if results.has_target else (_evaluated_sources(results).capitalize(),)
    return Table(results.dataset, columns, tuple(rows), tuple(notes))


def _caption(results: DatasetResults) -> str:
    metric = get_metric(results.metric)
    selection = SELECTIONS.get(results.selection, results.selection).format(metric=get_metric(results.select_by).label)
    how = f"selected by {selection}; {_describe_trials(results.members)}."
    combined = "mean" if metric.over_domains is mean else "lowest"
    if results.has_target:
        return (
            f"{metric.title} in % on the {split_label(results.split, results.members)}, {how} "
            f"In-domain: {combined} over the validation or test splits of the sources."
        )
    split = _evaluated_sources(results)
    caption = (
        f"No target: trained on all domains. {combined.capitalize()} {metric.label} in % on their {split} splits, {how}"
    )
    if split == "validation":
        caption += " These images also select the weights; test images (--split 60/20/20, or a folder test) do not."
    return caption


def _evaluated_sources(results: DatasetResults) -> str:
    """Return the split of the sources that stands in for a target."""
    return "test" if results.has_test else "validation"


def _missing_notes(results: DatasetResults, allow_missing_targets: bool) -> list[str]:
    """Say which trials and targets are missing, and what that means for the means."""
    errors: dict[str, list[tuple[str, str]]] = {}
    for row in results.missing[results.missing.trial.isna()].itertuples():
        errors.setdefault(row.reason, []).append((row.method, row.target))
    notes = [f"Not shown: {_missing_results(pairs, results.targets)}: {error}." for error, pairs in errors.items()]
    incomplete: dict[tuple[str, int, str], list[str]] = {}
    uneven: dict[str, list[str]] = {}
    lacking: dict[tuple[str, ...], list[str]] = {}
    lacks = group_by(results.missing.dropna().itertuples(), lambda row: row.method)
    for method in results.methods:
        for row in lacks.get(method, ()):
            incomplete.setdefault((row.target, row.trial, row.reason), []).append(method)
        present = list(results.units[method].dropna().index)
        if missing := _missing_targets(present, results):
            lacking.setdefault(missing, []).append(method)
        if (not missing or allow_missing_targets) and (reason := _uneven_trials(present)):
            uneven.setdefault(reason, []).append(method)

    def of_methods(labels: Sequence[str]) -> str:
        return "" if len(labels) == len(results.methods) else f" of {', '.join(labels)}"

    notes += [
        f"Without trial {number} on {target}: {', '.join(labels)}: {reason}."
        for (target, number, reason), labels in incomplete.items()
    ]
    notes += [
        f"Means over targets{of_methods(labels)} have no ±, because {reason}." for reason, labels in uneven.items()
    ]
    for missing, labels in lacking.items():
        mean_of, domains = f"mean over targets{of_methods(labels)}", ", ".join(missing)
        if allow_missing_targets:
            notes.append(f"{MISSING} The {mean_of} lacks {domains}: do not compare it with other means.")
        else:
            notes.append(
                f"No {mean_of}, because {domains} {'has' if len(missing) == 1 else 'have'} no result "
                "as target: `swad report --allow-missing-targets` shows the mean over the others."
            )
    return notes


def _missing_results(pairs: Sequence[tuple[str, str]], targets: Sequence[str]) -> str:
    """Name methods and targets without a result: "ERM, SWAD on photo"; the methods alone if all targets lack them."""
    labels = dict.fromkeys(label for label, _ in pairs)
    by_targets = group_by(labels, lambda label: tuple(target for other, target in pairs if other == label))
    return "; ".join(
        ", ".join(members) + ("" if len(names) == len(targets) else f" on {', '.join(names)}")
        for names, members in by_targets.items()
    )


def _uneven_trials(present: Iterable[Unit]) -> str:
    """Say which targets lack a trial that another target has; empty if none does."""
    targets, trials = sorted({target for target, _ in present}), sorted({trial for _, trial in present})
    lacking = {target: [str(trial) for trial in trials if (target, trial) not in present] for target in targets}
    return "; ".join(f"{target} lacks trial {', '.join(missing)}" for target, missing in lacking.items() if missing)


def _missing_targets(present: Iterable[Unit], results: DatasetResults) -> tuple[str, ...]:
    """Return the domains of the dataset on which a method has no result as target."""
    return tuple(sorted({*results.targets, *results.missing_targets} - {target for target, _ in present}))


@once
def _our_rows(results: DatasetResults, allow_missing_targets: bool) -> tuple[list[Row], str]:
    """Return a row per method, with the marks of each column, and why differences were not tested."""
    if not results.methods:
        return [], ""
    targets = results.targets if results.has_target else ()
    columns = [results.units.loc[[target]] for target in targets]
    columns += [results.units] if results.has_target else []
    columns += [results.source_units]
    cells: dict[str, list[Cell]] = {method: [] for method in results.methods}
    error = ""
    for number, units in enumerate(columns):
        is_mean = number >= len(targets)
        summary = means(units)
        column = {label: mean_cell(summary.loc[label]) for label in cells}
        if is_mean and (results.missing_targets or summary["mean"].isna().any()):
            column = {label: _incomplete(units[[label]], results, cell) for label, cell in column.items()}
            if not allow_missing_targets:
                column = {label: Cell() if cell.mark else cell for label, cell in column.items()}
        comparable = [label for label, cell in column.items() if cell.value is not None and not cell.mark]
        marked, not_tested = mark_column(column, units[comparable])
        error = error or not_tested
        for label, cell in marked.items():
            cells[label].append(cell)
    return [Row(label, tuple(each)) for label, each in cells.items()], error


def _incomplete(units: pd.DataFrame, results: DatasetResults, cell: Cell) -> Cell:
    """Return the mean of a method over the targets that it has, with a mark if it lacks one."""
    present = units.dropna().index.unique("target")
    if len(present) and (results.missing_targets or len(present) < len(results.targets)):
        # A mean over some of the targets is not comparable with one over all.
        return replace(mean_cell(means(units.loc[present]).iloc[0]), mark=MISSING)
    return cell


def _describe_trials(runs: Iterable[RunData]) -> str:
    trials: dict[tuple[str, tuple[str, ...]], set[int]] = {}
    for run in runs:
        trials.setdefault((run.algorithm, run.targets), set()).add(run.trial)
    counts = {len(numbers) for numbers in trials.values()}
    if counts == {1}:
        return "one trial"
    up_to = "" if len(counts) == 1 else "up to "
    return f"mean ± standard error over {up_to}{max(counts)} trials"


def comparable_rows(published_rows: Iterable[Row], ours: Iterable[Row], runs: Sequence[RunData]) -> list[Row]:
    """Return the few rows of the paper that ours are compared with: ERM, SWAD, and those with the name of one of ours.

    Args:
        published_rows: The rows of the paper.
        ours: Our rows.
        runs: The runs behind our rows.
    """
    algorithms = {base_algorithm(run.algorithm) for run in runs}
    names = {"ERM", "SWAD", *(row.name for row in ours), *map(algorithm_label, algorithms)}
    if names & {"SWA", "SWA (cyclic)"}:
        names |= {"SWA w/ cyclic" if run.config.get("lr_schedule") == "cyclic" else "SWA w/ const" for run in runs}
    return [row for row in published_rows if row.name.rstrip("†‡") in names]


def _published_rows(dataset: str, targets: Sequence[str]) -> list[Row]:
    per_target = [row for row in published.targets(dataset) if any(target in row.cells for target in targets)]
    has_all = any(set(row.cells) == set(targets) for row in per_target)
    rows = []
    for row in (*per_target, *(published.averages(dataset) if has_all else ())):
        # The paper's average is over all targets, and would mislead next to ours over fewer.
        average = row.average if not row.cells or set(row.cells) == set(targets) else None
        numbers = (*(row.cells.get(target) for target in targets), average)
        cells = [Cell() if number is None else Cell(number.value, number.error) for number in numbers]
        rows.append(Row(row.name, (*cells, Cell()), PAPER))
    return rows
