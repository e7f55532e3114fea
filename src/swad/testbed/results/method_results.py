"""The results of every method on a dataset: one selection for each algorithm and average, and what is missing.

Tables, the page's headline and the list of selected runs show the same results, so they are collected once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swad.testbed.results.labels import LIVE_WEIGHTS, is_erm, shared_label
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList, SkippedRun
from swad.testbed.results.selection import Selection, select
from swad.testbed.results.selectors import SelectionError
from swad.util.garbage import paused_garbage_collection
from swad.util.grouping import group_by
from swad.util.names import NO_TARGET


@dataclass(frozen=True)
class MethodResults:
    """The results of one algorithm and average."""

    label: str
    algorithm: str
    average: str | None
    results: Selection


@dataclass(frozen=True)
class DatasetResults:
    """The results of all methods on one dataset, of runs with a target or of runs without."""

    dataset: str
    """Name of the dataset, with ", no target" where there is none."""
    selection: str
    split: str
    runs: tuple[RunData, ...]
    targets: tuple[str, ...]
    """The domains that runs hold out."""
    missing_targets: tuple[str, ...]
    """Domains of the dataset that no run with results holds out."""
    methods: tuple[MethodResults, ...]
    errors: Mapping[str, list[tuple[str, str]]]
    """Why methods have no result on a target: the methods' labels and the targets, by error message."""
    skipped: tuple[SkippedRun, ...] = ()

    @property
    def has_target(self) -> bool:
        """Whether the accuracies are those of held-out domains, not of sources."""
        return self.targets != (NO_TARGET,)

    def method(self, label: str) -> Selection | None:
        """Return the results of one method by its label; None if it has none."""
        return next((method.results for method in self.methods if method.label == label), None)


def same_kind(results: Iterable[DatasetResults]) -> bool:
    """Return whether all or none have targets: a mean over both kinds of accuracy would mean nothing."""
    return len({each.has_target for each in results}) < 2


@paused_garbage_collection()
def collect_results(runs: Sequence[RunData], selection: str = "iid", split: str = "in") -> list[DatasetResults]:
    """Select the results of every method, dataset by dataset."""
    by_dataset = group_by(runs, lambda run: run.table_name)
    skipped = runs.skipped if isinstance(runs, RunList) else ()
    results = []
    for dataset, members in sorted(by_dataset.items(), key=lambda item: not item[1][0].targets):  # no target comes last
        # A skipped run whose dataset is unknown, or has no table, is mentioned in every table.
        others = by_dataset.keys() - {dataset}
        concerned = tuple(entry for entry in skipped if entry.run is None or entry.run.table_name not in others)
        results.append(_dataset_results(dataset, members, selection, split, concerned))
    return results


def _dataset_results(
    dataset: str, runs: Sequence[RunData], selection: str, split: str, skipped: tuple[SkippedRun, ...]
) -> DatasetResults:
    targets = tuple(sorted({run.target for run in runs if len(run.targets) < 2}))
    # Every run evaluates its sources, so the domains of the dataset are known from the records.
    domains = {key.domain for run in runs for key in run.table.series if key.domain is not None}
    domains |= {name for run in runs for name in run.targets}
    # An unfinished run may hold out a domain that does not exist; a finished one does not.
    domains |= {name for entry in skipped if entry.run is not None and entry.run.finished for name in entry.run.targets}
    methods: list[MethodResults] = []
    errors: dict[str, list[tuple[str, str]]] = {}
    # ERM comes first, because the other algorithms are compared with it.
    by_algorithm = group_by(runs, lambda run: run.algorithm)
    for algorithm, members in sorted(by_algorithm.items(), key=lambda item: not is_erm(item[0])):
        for average in reported_averages(members, selection):
            label = shared_label((run for run in members if average in run.table.evaluated_averages), average)
            by_target: list[Selection] = []
            for target in targets:
                try:
                    by_target.append(select(members, selection, average, split=split, targets=[target]))
                except SelectionError as error:
                    errors.setdefault(str(error), []).append((label, target))
            if results := Selection.join(by_target):
                methods.append(MethodResults(label, algorithm, average, results))
    missing = () if targets == (NO_TARGET,) else tuple(sorted(domains - set(targets)))
    return DatasetResults(dataset, selection, split, tuple(runs), targets, missing, tuple(methods), errors, skipped)


def reported_averages(runs: Iterable[RunData], method: str = "iid") -> list[str | None]:
    """Return the names of the weights that were evaluated on the targets, or without any on the sources.

    Live weights come first, and SWAD last.

    None stands for the live weights at the step that `method` selects. They get a row of their own only with
    "oracle_best_step", or if the runs have neither `best` nor `last`.
    """
    names: dict[str | None, None] = {}
    for run in runs:
        for key in run.table.series:
            if key.metric == "accuracy" and (key.domain in run.targets or not run.targets):
                names[key.average] = None
    if method != "oracle_best_step" and any(name in names for name in LIVE_WEIGHTS):
        names.pop(None, None)

    def order(name: str | None) -> int:
        if name is None or name in LIVE_WEIGHTS:
            return 0
        return 2 if name.startswith("swad") else 1

    return sorted(names, key=order)
