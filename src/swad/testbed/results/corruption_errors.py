"""Errors under corruption of runs, read from their `robustness.jsonl`: means and intervals over trials, comparisons.

A mean is over targets within each trial, then over trials. Its 95 % interval is Student's t over trials, as for
flatness: it holds for another training on these targets and images. One trial has no interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swad.testbed.results.comparisons import Comparison, compare, complete_trials, correct
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measurement_rows import last_shown, latest_rows, read_rows
from swad.testbed.results.run_data import RunData
from swad.util.statistics import contributions, half_widths, mean

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

EARLIER = {1: ", bytes rounded to the nearest, dark frost", 2: ", dark frost"}
"""How earlier versions of the corruptions differ from the present one, as a part of names."""

CLEAN = ("none", 0)

Case = tuple[str, int]
"""Corruption and severity."""
Unit = tuple[str, int]
"""Target and trial of a run."""


@dataclass(frozen=True)
class TrialMean:
    """A mean over trials, with half of its 95 % interval, which is None for a single trial."""

    mean: float
    half: float | None = None


@dataclass(frozen=True)
class CorruptionErrors:
    """The errors of one dataset's runs on one side: by method and run, the mean over domains of every case."""

    dataset: str
    side: str
    errors: Mapping[str, Mapping[Unit, Mapping[Case, float]]]
    partial: bool = False
    """Whether images or corruptions of the published set are missing."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Where runs' images are corrupted: images of every domain (None: all), seed and version of the corruptions."""

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
    def has_dark_frost(self) -> bool:
        """Whether frost is part of the errors and was measured with its earlier texture."""
        return self.settings.get("version") in EARLIER and any(name == "frost" for name, _ in self.cases())

    @property
    def has_clean(self) -> bool:
        """Whether every method and run has the error of clean images."""
        return all(CLEAN in by_case for units in self.errors.values() for by_case in units.values())

    @property
    def targets(self) -> list[str]:
        """The targets of any method."""
        return sorted({target for units in self.errors.values() for target, _ in units})

    def complete_trials(self, method: str) -> list[int]:
        """The trials in which a method was measured on every target."""
        return complete_trials(self.targets, self.errors[method])

    def mean_errors(self, method: str, cases: Iterable[Case]) -> dict[Unit, float]:
        """Return a method's mean error over some cases for every run."""
        cases = list(cases)
        return {unit: mean(by_case[case] for case in cases) for unit, by_case in self.errors[method].items()}

    def quantities(self, method: str) -> dict[str, dict[Unit, float]]:
        """Return a method's errors for every run: clean, corrupted, what corruption adds, and by kind of corruption."""
        cases = self.cases()
        corrupted = self.mean_errors(method, cases)
        errors = {"Corrupted": corrupted}
        if self.has_clean:
            clean = self.mean_errors(method, [CLEAN])
            errors = {"Clean": clean, **errors, "Added": {unit: corrupted[unit] - clean[unit] for unit in clean}}
        kinds = {kind: [case for case in cases if case[0] in names] for kind, names in GROUPS.items()}
        return errors | {kind: self.mean_errors(method, members) for kind, members in kinds.items() if members}

    def trial_means(self, method: str, by_unit: Mapping[Unit, float]) -> list[float]:
        """Average a quantity of a method over targets, for each trial that has them all.

        Without such a trial, there is one mean over all runs.
        """
        trials = self.complete_trials(method)
        return [mean(by_unit[target, n] for target in self.targets) for n in trials] or [mean(by_unit.values())]


def read_corruption_errors(runs: Iterable[RunData]) -> list[CorruptionErrors]:
    """Collect the errors of runs, by dataset and side; runs that were not measured are left out.

    Errors of different settings are not averaged: if there are several, the name of the dataset states them.
    Methods are in the order in which their weights were requested, because the others are compared with the first.
    Those of ERM come before those of other algorithms.
    """
    collected: dict[tuple[str, tuple[int | None, int | None, int], str], dict[str, dict[Unit, dict[Case, float]]]] = {}
    # Of the trainings of the imagenet recipe, the one that decays to zero is ERM.
    for run in sorted(runs, key=lambda run: (run.algorithm != "erm", run.config.get("lr_schedule") != "decay")):
        rows = read_rows(run.path, ROBUSTNESS)
        shown = last_shown(rows, "error")
        if shown is None:
            continue
        setting = (shown[0].get("images"), shown[0].get("seed"), shown[0].get("version", 1))
        mark = [row for row in rows if row["kind"] == "shown"][-1]
        requested: list[str] = mark.get("weights", [])
        # Weights may have been trained again. If measuring the new ones was interrupted, the old ones are shown.
        fingerprints = mark.get("fingerprints")  # older files have none: the last measurement of every case counts
        measured = list(zip(requested, fingerprints, strict=True)) if fingerprints else None
        by_domain: dict[tuple[str, str, Case], list[float]] = {}
        shown_rows = [row for row in shown[1] if measured is None or (row["weights"], row["fingerprint"]) in measured]
        for row in latest_rows(shown_rows, "weights", "domain", "corruption", "severity"):
            if row["weights"] in requested:
                case = (row["corruption"], row["severity"])
                by_domain.setdefault((row["side"], row["weights"], case), []).append(row["error"])
        for (side, weights, case), errors in sorted(by_domain.items(), key=lambda item: requested.index(item[0][1])):
            by_method = collected.setdefault((run.table_name, setting, side), {})
            by_unit = by_method.setdefault(weights_label(run, weights), {})
            by_unit.setdefault((run.target, run.trial), {})[case] = mean(errors)
    n_settings = Counter((dataset, side) for dataset, _, side in collected)
    by_dataset = []
    for (dataset, (images, seed, version), side), methods in sorted(collected.items(), key=lambda item: str(item[0])):
        name = dataset
        if n_settings[dataset, side] > 1:
            name += f", {images or 'all'} images, seed {seed}{EARLIER.get(version, '')}"
        settings = {"images": images, "seed": seed, "version": version}
        by_dataset.append(CorruptionErrors(name, side, methods, settings=settings))
    return by_dataset


def mean_over_trials(values: Sequence[float]) -> TrialMean:
    """Average the values of trials, with Student's t interval if there are several.

    >>> over = mean_over_trials([0.25, 0.5, 0.75])
    >>> over.mean, round(over.half, 4)
    (0.5, 0.621)
    """
    import numpy as np

    if len(values) < 2:
        return TrialMean(mean(values))
    return TrialMean(mean(values), half_widths({"trials": contributions(np.array(values)[:, None])})[0])


def compare_errors(results: CorruptionErrors) -> dict[str, list[Comparison]]:
    """Compare the clean and the corruption error of every method with the first, paired by trial.

    The accuracies of each `Comparison` are errors here. All comparisons are one family: p-values are corrected for
    their number. Methods that share no complete trial with the first are left out.

    Returns:
        By "Clean" and "Corrupted", one comparison for each other method.
    """
    baseline, *others = results.methods
    names = ["Clean", "Corrupted"] if results.has_clean else ["Corrupted"]
    errors = {method: results.quantities(method) for method in results.methods}
    compared = [
        (name, comparison)
        for name in names
        for method in others
        if (
            comparison := compare(
                errors[method][name],
                errors[baseline][name],
                results.targets,
                unit="trials",  # as the intervals of the methods
                n_comparisons=len(names) * len(others),
                names=(results.dataset, method, baseline),
            )
        )
    ]
    corrected = correct(comparison for _, comparison in compared)
    return {name: [new for (of, _), new in zip(compared, corrected, strict=True) if of == name] for name in names}


def severity_curves(results: CorruptionErrors) -> dict[str, dict[int, TrialMean]]:
    """Return, by method and severity, the mean error over corruptions, targets and trials; 0 is the clean image."""
    return {
        method: {
            severity: mean_over_trials(results.trial_means(method, results.mean_errors(method, cases)))
            for severity, cases in _by_severity(results).items()
        }
        for method in results.methods
    }


def severity_differences(results: CorruptionErrors) -> dict[str, dict[int, TrialMean]]:
    """Return the paired differences of the curves to that of the first method.

    They are over the trials that both have on every target; methods with fewer than two such trials are left out.
    """
    baseline, *others = results.methods
    differences = {}
    for method in others:
        trials = complete_trials(results.targets, results.errors[method], results.errors[baseline])
        if len(trials) > 1:
            differences[method] = {
                severity: mean_over_trials(
                    [mean(first[target, n] - second[target, n] for target in results.targets) for n in trials]
                )
                for severity, cases in _by_severity(results).items()
                for first, second in [[results.mean_errors(each, cases) for each in (method, baseline)]]
            }
    return differences


def _by_severity(results: CorruptionErrors) -> dict[int, list[Case]]:
    cases = [CLEAN] * results.has_clean + results.cases()
    return {severity: [case for case in cases if case[1] == severity] for severity in sorted({c[1] for c in cases})}
