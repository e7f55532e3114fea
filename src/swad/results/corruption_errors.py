"""Errors under corruption of runs, read from their `robustness.jsonl`: tables, comparisons and curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swad.results.comparisons import compare, correct, p_text
from swad.results.flatness_rows import last_shown, latest_rows, read_rows
from swad.results.labels import weights_label
from swad.results.runs import RunData
from swad.results.tables import Cell, Table
from swad.results.tables import Row as TableRow
from swad.util.names import NO_TARGET
from swad.util.statistics import mean, summarize

ROBUSTNESS = "robustness.jsonl"
"""The file of a run directory that holds its errors under corruption."""

STORED = "stored"
SIDES = {
    "seen": "validation images of the sources",
    "unseen": "images of the held-out domain",
    STORED: "the stored images of ImageNet-C",
}

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""The corruptions by kind, as ImageNet-C groups them."""

CLEAN = ("none", 0)

Case = tuple[str, int]
"""Corruption and severity."""
Unit = tuple[str, int]
"""Target and trial of a run."""


@dataclass(frozen=True)
class CorruptionErrors:
    """The errors of one dataset's runs on one side: by method and run, the mean over domains of every case."""

    dataset: str
    side: str
    errors: Mapping[str, Mapping[Unit, Mapping[Case, float]]]
    partial: bool = False
    """Whether images or corruptions of the published set are missing."""

    @property
    def title(self) -> str:
        """The dataset and its side."""
        return f"{self.dataset}{', partial' * self.partial}" if self.side == STORED else f"{self.dataset}, {self.side}"

    @property
    def methods(self) -> list[str]:
        """The methods in the order in which they were measured."""
        return list(self.errors)

    def cases(self) -> list[Case]:
        """The corruptions and severities that every method and run has, without the clean images."""
        measured = [set(cases) for units in self.errors.values() for cases in units.values()]
        shared = set.intersection(*measured) - {CLEAN} if measured else set()
        order = [name for names in GROUPS.values() for name in names]
        return sorted(shared, key=lambda case: (order.index(case[0]), case[1]))

    @property
    def has_clean(self) -> bool:
        """Whether every method and run has the error of clean images."""
        return all(CLEAN in by_case for units in self.errors.values() for by_case in units.values())

    def mean_errors(self, method: str, cases: Iterable[Case]) -> dict[Unit, float]:
        """Return a method's mean error over some cases for every run."""
        cases = list(cases)
        return {unit: mean(by_case[case] for case in cases) for unit, by_case in self.errors[method].items()}


def read_corruption_errors(runs: Iterable[RunData]) -> list[CorruptionErrors]:
    """Collect the errors of runs, by dataset and side; runs that were not measured are left out.

    Methods are in the order in which their weights were requested, because the others are compared with the first.
    Those of ERM come before those of other algorithms.
    """
    collected: dict[tuple[str, str], dict[str, dict[Unit, dict[Case, float]]]] = {}
    # Of the trainings of the imagenet recipe, the one that decays to zero is ERM.
    for run in sorted(runs, key=lambda run: (run.algorithm != "erm", run.config.get("lr_schedule") != "decay")):
        rows = read_rows(run.path, ROBUSTNESS)
        shown = last_shown(rows, "error")
        if shown is None:
            continue
        requested: list[str] = [row.get("weights", []) for row in rows if row["kind"] == "shown"][-1]
        by_domain: dict[tuple[str, str, Case], list[float]] = {}
        # The last measurement of every case counts: weights may have been trained again.
        for row in latest_rows(shown[1], "weights", "domain", "corruption", "severity"):
            if row["weights"] in requested:
                case = (row["corruption"], row["severity"])
                by_domain.setdefault((row["side"], row["weights"], case), []).append(row["error"])
        for (side, weights, case), errors in sorted(by_domain.items(), key=lambda item: requested.index(item[0][1])):
            by_method = collected.setdefault((run.table_name, side), {}).setdefault(weights_label(run, weights), {})
            by_method.setdefault((run.target, run.trial), {})[case] = mean(errors)
    return [CorruptionErrors(dataset, side, errors) for (dataset, side), errors in sorted(collected.items())]


def corruption_table(results: CorruptionErrors) -> Table:
    """Build the table of errors in percent: clean, corrupted, what corruption adds, and by kind of corruption."""
    cases = results.cases()
    kinds = {
        kind: [case for case in cases if case[0] in names]
        for kind, names in GROUPS.items()
        if any(case[0] in names for case in cases)
    }
    rows = []
    for method in results.methods:
        corrupted = results.mean_errors(method, cases)
        columns = [corrupted, *(results.mean_errors(method, members) for members in kinds.values())]
        if results.has_clean:
            clean = results.mean_errors(method, [CLEAN])
            columns[:1] = [clean, corrupted, {unit: corrupted[unit] - clean[unit] for unit in clean}]
        rows.append(TableRow(method, tuple(error_cell(column) for column in columns)))
    names = sorted({name for name, _ in cases})
    severities = sorted({severity for _, severity in cases})
    at = f"{'severity' if len(severities) == 1 else 'severities'} {', '.join(map(str, severities))}"
    notes = [
        f"Error in % on {SIDES[results.side]}; corrupted: mean over {len(names)} corruption{'s' * (len(names) > 1)} at "
        f"{at}; {_trials(results)}.",
    ]
    if results.side != STORED:
        notes.append(
            "Corruptions are computed here by the definitions of ImageNet-C: do not compare with errors on its stored "
            "images."
        )
    if results.partial:
        notes.append("Partial: do not compare it with published numbers.")
    first = ("Clean", "Corrupted", "Added") if results.has_clean else ("Corrupted",)
    return Table(f"Corruption error: {results.title}", (*first, *kinds), tuple(rows), tuple(notes))


def comparison_table(results: CorruptionErrors) -> Table | None:
    """Compare the corruption error of every method with the first, paired by target and trial; None for one method."""
    if len(results.methods) < 2:
        return None
    cases = results.cases()
    # Comparisons are of accuracies; a smaller error is a higher accuracy.
    accuracies = {
        method: {unit: 1 - error for unit, error in results.mean_errors(method, cases).items()}
        for method in results.methods
    }
    baseline, *others = results.methods
    targets = sorted({target for target, _ in accuracies[baseline]})
    compared = [
        compare(accuracies[name], accuracies[baseline], targets, n_comparisons=len(others), names=("", name, baseline))
        for name in others
    ]
    rows = []
    for comparison in correct([each for each in compared if each is not None]):
        test = comparison.test
        interval = (
            "–" if test.low is None or test.high is None else f"{-100 * test.high:+.1f} to {-100 * test.low:+.1f}"
        )
        cells = (
            Cell(text=f"{round(-100 * comparison.difference, 1) + 0.0:+.1f}"),  # no -0.0
            Cell(text=interval),
            Cell(text=p_text(comparison.corrected_p)),
            Cell(comparison.n_trials, decimals=0),
        )
        rows.append(TableRow(comparison.method, cells))
    note = "Difference of the corruption error in points, with its 95 % interval; p corrected by Holm."
    if any(each is not None and each.n_trials == 1 for each in compared):
        note += " One trial has no spread between trainings: nothing is claimed from it."
    columns = ("Difference", "95 % interval", "p", "Trials")
    return Table(f"Compared with {baseline}: {results.title}", columns, tuple(rows), (note,))


def severity_curves(results: CorruptionErrors) -> dict[str, tuple[list[int], list[float]]]:
    """Return, by method, severities and the mean error over corruptions and runs at each; 0 is the clean image."""
    cases = [CLEAN] * results.has_clean + results.cases()
    severities = sorted({severity for _, severity in cases})
    return {
        method: (
            severities,
            [
                mean(results.mean_errors(method, [case for case in cases if case[1] == severity]).values())
                for severity in severities
            ],
        )
        for method in results.methods
    }


def error_cell(by_unit: Mapping[Unit, float]) -> Cell:
    """Return errors in percent: averaged over targets within each trial, then over trials."""
    trials = sorted({trial for _, trial in by_unit})
    summary = summarize(mean(value for (_, n), value in by_unit.items() if n == trial) for trial in trials)
    return Cell(100 * summary.mean, None if summary.error is None else 100 * summary.error)


def _trials(results: CorruptionErrors) -> str:
    units = {unit for by_unit in results.errors.values() for unit in by_unit}
    targets, trials = {target for target, _ in units}, {trial for _, trial in units}
    over = "no target" if targets == {NO_TARGET} else f"mean over {len(targets)} target{'s' * (len(targets) > 1)}"
    return f"{over}, one trial" if len(trials) == 1 else f"{over}, ± standard error over {len(trials)} trials"
