"""Problems of runs that a reader of their results should know about."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from swad.testbed.results.failures import read_failure
from swad.testbed.results.labels import algorithm_label, differing_hyperparameters, method_label, run_label
from swad.testbed.results.records import LIVE
from swad.testbed.results.run_data import RunData, setting_text
from swad.testbed.results.runs import RunList
from swad.testbed.results.training_curves import Curves, last_steps, mean_curve, source_curves, valleys
from swad.util.grouping import group_by
from swad.util.names import NO_TARGET, counted, listed


def find_problems(runs: Sequence[RunData]) -> list[str]:
    """Return one sentence for each problem that a reader of the results should know about."""
    import numpy as np

    runs = RunList.of(runs)
    rows = runs.records
    doubled = runs.repeats.run.value_counts().to_dict()
    losses = rows[(rows.metric.isin(("loss", "valley_loss", "train_loss")) & ~np.isfinite(rows.value)).to_numpy()]
    nonfinite = losses.run.value_counts().to_dict()
    last, ranges, curves = last_steps(runs), valleys(runs), source_curves(runs, "accuracy")
    problems = []
    not_converged: dict[str, list[str]] = defaultdict(list)  # runs by average
    warned: dict[str, list[str]] = defaultdict(list)  # runs by warning
    diverged: list[str] = []
    for number, run in enumerate(runs):
        name = run_label(run)
        steps = run.config.get("steps")
        if not run.finished:
            reached = f"step {last[number]:,} of {steps or 'unknown'}"
            failure = read_failure(run.path)
            problems.append(
                f"{name} is unfinished: it has reached {reached}."
                if failure is None
                else f"{name} failed after {reached}: {failure.error.rstrip('.')}."
            )
        if number in doubled:
            problems.append(
                f"{name} recorded {doubled[number]:,} values twice, as two processes that train it at once do: "
                "remove it and train it again."
            )
        for average, averaged in ranges[number].items():
            if run.finished and averaged.threshold is None:
                not_converged[average].append(name)
        for text in run.warnings:
            if "never converged" not in text:  # these are listed by average
                warned[text].append(name)
        if fall := _fall_of_accuracy(curves[number]):
            diverged.append(f"{name} ({fall})")
        if number in nonfinite:
            problems.append(f"{name} recorded {nonfinite[number]} losses that are not finite.")
    for average, names in not_converged.items():
        problems.append(
            f"{_listed(names)}: the validation loss never converged for {average}, so it averages only the end of "
            "training: train longer or evaluate more often."
        )
    problems += [f"{_listed(names)}: {text}." for text, names in warned.items()]
    if diverged:
        problems.append(
            f"{_listed(diverged)}: the validation accuracy of the live weights fell by more than half, so the training "
            "diverged: lower lr or the weight of the algorithm's penalty, or set clip."
        )
    problems += _mixtures(runs) + _unequal_choices(runs) + _repeats(runs)
    return problems


def _fall_of_accuracy(curves: Curves) -> str:
    """Say from where to where validation accuracy fell, if it ended below half of its best; "" if it did not.

    Accuracy tells more than the loss, which also grows when a network that overfits becomes too sure.
    """
    # The mean can only fall by more than half where one of the curves does.
    if not any([*curve.values()][-1] < max(curve.values()) / 2 for curve in curves.values()):
        return ""
    accuracies = list(mean_curve(curves.values()).values())
    if not accuracies or accuracies[-1] >= max(accuracies) / 2:
        return ""
    return f"{100 * max(accuracies):.1f} to {100 * accuracies[-1]:.1f} %"


def _listed(names: Sequence[str]) -> str:
    """Name the first of many runs."""
    return "; ".join(names[:3]) + (f"; and {len(names) - 3:,} more" if names[3:] else "")


def _mixtures(runs: Sequence[RunData]) -> list[str]:
    """Find tables that compare runs with different settings."""
    problems = []
    for dataset, members in group_by(runs, lambda run: run.table_name).items():
        alike = group_by(members, lambda run: run.search_settings)
        for name in sorted({name for run, *_ in alike.values() for name in run.settings("protocol")}):
            values: Counter[str] = Counter()
            for same in alike.values():
                values[setting_text(same[0].config.get(name))] += len(same)
            if len(values) > 1:
                counts = ", ".join(f"{value} ({counted(n, 'run')})" for value, n in values.most_common())
                problems.append(f"The runs on {dataset} differ in {name}: {counts}. Report them separately.")
    return problems


def _unequal_choices(runs: RunList) -> list[str]:
    """Find weights that are selected from more runs than others of the same algorithm, because runs differ in averages.

    The best of several runs by validation tends to be better, so a comparison with the best of fewer is unfair.
    """
    problems = []
    from swad.testbed.results.frames import distinct

    rows = runs.records
    rows = rows[((rows.metric == "accuracy") & (rows.weights != LIVE)).to_numpy()]
    evaluated: dict[int, list[str]] = defaultdict(list)
    for number, weights in sorted(distinct(rows, "weights")):
        evaluated[number].append(weights)
    finished = ((number, run) for number, run in enumerate(runs) if run.finished)
    groups = group_by(finished, lambda item: (item[1].table_name, item[1].algorithm))
    for (dataset, algorithm), members in groups.items():
        by_unit: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for number, run in members:
            if len(run.targets) < 2:
                by_unit[run.target, run.trial].update(evaluated[number])
        for counts in by_unit.values():
            by_count = group_by((average for average, _ in counts.most_common()), counts.__getitem__)
            if len(by_count) > 1:
                choices = "; ".join(
                    f"{listed(method_label(algorithm, average) for average in averages)} from {counted(n, 'run')}"
                    for n, averages in by_count.items()
                )
                differing = ", ".join(differing_hyperparameters([run for _, run in members]))
                problems.append(
                    f"{algorithm_label(algorithm)} on {dataset}: some weights are selected from more runs of a target "
                    f"and trial than others, which favors them: {choices}. The runs differ in {differing}. Report them "
                    "separately."
                )
                break  # the other targets and trials differ in the same way
    return problems


def _repeats(runs: Sequence[RunData]) -> list[str]:
    """Find runs with the same settings. They are not two trials, and selection would silently take the better one."""
    counts = Counter(
        (run.dataset, run.algorithm, run.targets, run.trial, run.config.get("seed"), run.search_settings)
        for run in runs
    )
    return [
        f"{algorithm_label(algorithm)} on {dataset}, target {' and '.join(targets) or NO_TARGET}, trial {trial}: "
        f"{count} runs have the same settings, and selection takes the better one."
        for (dataset, algorithm, targets, trial, _, _), count in counts.items()
        if count > 1
    ]
