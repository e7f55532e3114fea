"""Tables of accuracies and their differences from kept runs, for `tables.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from swad.testbed.paper.accuracy import DIFFERENCE
from swad.testbed.paper.items import ITEMS
from swad.testbed.paper.paper_config import PaperConfig
from swad.testbed.paper.reproduction import PaperRuns, availability_notes
from swad.testbed.paper.trainings import Training
from swad.testbed.results.accuracy_table import PaperRows, accuracy_table
from swad.testbed.results.compare import compare, units_of_methods
from swad.testbed.results.comparisons import BASELINE, on_dataset
from swad.testbed.results.domainbed import DOMAINS
from swad.testbed.results.labels import algorithm_label
from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import DatasetResults, collect_results
from swad.testbed.results.tables import PAPER, Cell, Row, Table
from swad.testbed.results.unit_tables import LOWER, comparisons_tables
from swad.util.paired import adjust_p_values
from swad.util.statistics import mean


def accuracies(source: Path) -> Table:
    """Accuracy of every average on every target; with ResNet-50 also the paper's numbers."""
    results = _results(source)
    is_resnet = all(str(run.config.get("network")).startswith("resnet50") for run in results.members)
    return _accuracies(results, "few" if is_resnet else "none")


def table3(source: Path) -> Table:
    """Table 3 of the paper, from kept runs with the 60/20/20 split."""
    return _of_paper(source, "table3")


def table5(source: Path) -> Table:
    """Table 5 of the paper, from kept runs with the 60/20/20 split."""
    return _of_paper(source, "table5")


class _KeptRuns(PaperRuns):
    """Kept runs have lost their place in a sweep: they are found by the settings of the training instead."""

    def __init__(self, source: Path) -> None:
        self.kept = find_runs(source)
        config = PaperConfig(
            source,
            datasets=("PACS",),
            trials=tuple(sorted({run.trial for run in self.kept})),
            protocol="defaults",
            steps=self.kept[0].config["steps"],
            evaluate_every=self.kept[0].config["evaluate_every"],
        )
        super().__init__(config)

    def runs(self, dataset: str, training: Training) -> list[RunData]:
        wanted = {name: getattr(training, name) for name in ("algorithm", "split", "lr_schedule")}
        return [run for run in self.kept if wanted.items() <= run.config.items()]


def _of_paper(source: Path, name: str) -> Table:
    """Build a table as `swad reproduce` does, and leave out the columns that have no number of ours."""
    results = _KeptRuns(source)
    (table,) = ITEMS[name].build(results).tables
    ours = [row for row in table.rows if row.group not in (PAPER, DIFFERENCE)]
    kept = [i for i in range(len(table.columns)) if any(row.cells[i].printed != "–" for row in ours)]
    rows = tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in table.rows)
    left_out = availability_notes(results.config, ITEMS[name].datasets)
    notes = tuple(note for note in table.notes if note not in left_out)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows, notes=notes)


def methods(source: Path) -> Table:
    """Accuracy of every algorithm alone, with SWA and with SWAD, and the paper's numbers."""
    table = _accuracies(_results(source), "few")
    rows = (row for row in table.rows if row.group == PAPER or row.name.endswith(("(best)", "SWA", "SWAD")))
    return replace(table, rows=tuple(rows))


def _accuracies(results: DatasetResults, paper: PaperRows) -> Table:
    """Build the accuracy table, and say above its notes how many targets there are if some are missing."""
    table = accuracy_table(results, paper, allow_missing_targets=True)
    if not results.missing_targets:
        return table
    n_targets = len(results.targets) + len(results.missing_targets)
    return replace(table, notes=(f"{len(results.targets)} of {n_targets} targets.", *table.notes))


def differences(source: Path) -> Table:
    """SWAD minus every other method, paired over runs."""
    results = _results(source)
    others = [method for method in results.methods if method != "SWAD"]
    return _compared(results, results, {f"SWAD − {label}": ("SWAD", label) for label in others})


def domains(*sources: Path) -> Table:
    """SWAD minus every method that all datasets share, paired over held-out domains: the means over trials.

    Seven domains are too few for an exact test that is to be corrected for five comparisons. Each test is exact as if
    it were alone, because one of them, against ERM's best step, is the paper's own.
    """
    by_label, targets, table = _over_domains([_results(source) for source in sources])
    swad = by_label["SWAD"]
    trials = sorted({trial for _, trial in swad})
    points = [mean(swad[target, n] - by_label[BASELINE][target, n] for n in trials) for target in targets]
    smallest = 2 / 2 ** len(targets)
    listing = ", ".join(f"{target} {100 * value:+z.1f}" for target, value in zip(targets, points, strict=True))
    notes = (
        "A unit is a held-out domain: its mean over trials.",
        f"Each p is that of the comparison alone. The smallest that {len(targets)} domains can give is {smallest:.2g}, "
        f"and {min(1, len(table.rows) * smallest):.2g} corrected for {len(table.rows)} comparisons.",
        f"SWAD − {BASELINE} by domain: {listing}.",
    )
    return replace(table, notes=(*table.notes, *notes))


def evidence(*sources: Path) -> Table:
    """Mean accuracies of the averages that all datasets share, and SWAD minus each, paired over held-out domains."""
    every = [_results(source) for source in sources]
    by_label, targets, table = _over_domains(every)
    compared = {row.name.removeprefix("SWAD − "): row.cells for row in table.rows}
    means = [_means(results) for results in every]
    blank = (Cell(text=""),) * len(table.columns)
    rows = [
        Row(label, (*(of_dataset[label] for of_dataset in means), *compared.get(label, blank)))
        for label in by_label
        if label in compared or label == "SWAD"
    ]
    datasets = [results.dataset if results.dataset.isupper() else results.dataset.capitalize() for results in every]
    columns = (*datasets, "SWAD minus it", *table.columns[1:])
    note = (
        f"Mean accuracy in % on the held-out domain ± standard error over trials. The difference is paired over the "
        f"{len(targets)} domains, each its mean over trials; p is exact (sign flips), and corrected by Holm for the "
        f"{len(compared)} comparisons; –: no difference shown at a corrected p of 0.05."
    )
    kept = [i for i, name in enumerate(columns) if name != "n"]
    rows = [replace(row, cells=tuple(row.cells[i] for i in kept)) for row in rows]
    return replace(table, columns=tuple(columns[i] for i in kept), rows=tuple(rows), notes=(note,), corner="Average")


def _over_domains(every: Sequence[DatasetResults]) -> tuple[dict[str, dict[tuple[str, int], float]], list[str], Table]:
    """Return accuracies by label, the held-out domains, and SWAD minus every method that all datasets share."""
    by_label: dict[str, dict[tuple[str, int], float]] = {}
    for results in every:
        for method in results.methods:
            accuracies = results.units[method].dropna().items()
            by_domain = {(f"{results.dataset}/{target}", trial): value for (target, trial), value in accuracies}
            by_label.setdefault(method, {}).update(by_domain)
    targets = [f"{results.dataset}/{target}" for results in every for target in results.targets]
    swad = by_label["SWAD"]
    tests = pd.concat(
        [
            compare(units_of_methods({label: values, "SWAD": swad}), label, "targets")
            for label, values in by_label.items()
            if label != "SWAD" and values.keys() == swad.keys()
        ]
    )
    names = "SWAD − " + tests["baseline"]
    tests = on_dataset(tests.assign(method=names, corrected_p=adjust_p_values(list(tests["p"]))), "")
    return by_label, targets, replace(comparisons_tables(tests)[0], corner="Difference")


def combined(source: Path) -> Table:
    """Every algorithm with SWAD minus ERM with SWAD, paired over runs: what the algorithm adds to SWAD."""
    results = _results(source)
    labels = [method for method in results.methods if method.endswith("+ SWAD")]
    return _compared(results, results, {f"{label} − SWAD": (label, "SWAD") for label in labels})


def gains(source: Path) -> Table:
    """Every algorithm alone and with SWAD, and their difference, paired over runs."""
    results = _results(source)
    labels = dict.fromkeys(map(algorithm_label, results.results.algorithm))
    pairs = {label: ("SWAD" if label == "ERM" else f"{label} + SWAD", f"{label} (best)") for label in labels}
    return _side_by_side(results, results, pairs, ("Alone", "+ SWAD"))


def search(source: Path) -> Table:
    """Every method with default hyperparameters and with those of a search, and their difference, paired over runs."""
    defaults, searched = _results(source / "defaults.json"), _results(source / "searched.json")
    pairs = {method: (method, method) for method in searched.methods}
    return _side_by_side(searched, defaults, pairs, ("Defaults", "Searched"))


def _side_by_side(
    results: DatasetResults, baseline: DatasetResults, pairs: Mapping[str, tuple[str, str]], columns: tuple[str, str]
) -> Table:
    """Show the means of the methods of each pair, that of the baseline first, and their difference."""
    compared = _compared(results, baseline, pairs)
    means = [_means(baseline), _means(results)]
    rows = [
        Row(row.name, (means[0][pairs[row.name][1]], means[1][pairs[row.name][0]], *row.cells)) for row in compared.rows
    ]
    return replace(compared, columns=(*columns, *compared.columns), rows=tuple(rows), corner="Method")


def _means(results: DatasetResults) -> dict[str, Cell]:
    """Return the mean over targets of every method, without the marks of its column: pairs are compared beside it."""
    table = _accuracies(results, "none")
    cells = {row.name: row.cells[table.columns.index("Avg.")] for row in table.rows}
    return {name: replace(cell, best=False, mark=cell.mark.rstrip(LOWER)) for name, cell in cells.items()}


def _compared(results: DatasetResults, baseline: DatasetResults, pairs: Mapping[str, tuple[str, str]]) -> Table:
    """Subtract methods of the baseline from methods over runs, by the name of the pair; correct for their number."""
    family = {
        name: units_of_methods({"second": baseline.units[second].dropna(), "first": results.units[first].dropna()})
        for name, (first, second) in pairs.items()
    }
    tests = compare(family, "second", "runs")
    tests = tests.assign(method=tests["quantity"], baseline=[pairs[name][1] for name in tests["quantity"]])
    (table,) = comparisons_tables(on_dataset(tests, results.dataset, results.missing_targets))
    return replace(table, corner="Difference")


def _results(source: Path) -> DatasetResults:
    (results,) = collect_results(kept_runs(source))
    return results


def kept_runs(source: Path) -> Sequence[RunData]:
    """Return the kept runs of a directory, or those of a file that holds accuracies alone."""
    return find_runs(source) if source.is_dir() else list(_stated_runs(source))


def _stated_runs(path: Path) -> Iterator[RunData]:
    """Read a file that holds accuracies in percent by training, target and weights, and no other records.

    A training is "coral trial 1", or without the algorithm (ERM) or the trial (0).
    """
    content = json.loads(path.read_text())
    dataset, on_sources = content.get("dataset", "PACS"), content.get("sources_accuracy_out", {})
    for name, targets in content["target_accuracy_in"].items():
        algorithm, trial = re.fullmatch(r"(.*?) ?(?:trial (\d+))?", name).groups()  # type: ignore[union-attr]
        algorithm, trial = algorithm or "erm", int(trial or 0)
        for target, by_weights in targets.items():
            config = {"dataset": dataset, "algorithm": algorithm, "target": target, "trial": trial}
            records = [Record("", 1, target, "in", "accuracy", value / 100, key) for key, value in by_weights.items()]
            records += [
                Record("", 1, domain, "out", "accuracy", value / 100, key)  # the file holds the mean over the sources
                for key, value in on_sources.get(name, {}).get(target, {}).items()
                for domain in (DOMAINS["PACS"] if dataset == "PACS" else targets)
                if domain != target
            ]
            yield RunData(path / f"{algorithm}-{target}-{trial}", config, records, True)
