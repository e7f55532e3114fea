"""What tables, figures and page read off a run: its curves, its valley, its timings, and what went wrong."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swad.results import published
from swad.results.runs import RunData
from swad.results.selection import hyperparameters


@dataclass(frozen=True)
class Valley:
    """The range an average took: from `start` to `end`, both included, below `threshold`.

    `threshold` is None while, or if, the losses never converged.
    """

    average: str
    start: int | None
    end: int | None
    n_averaged: int | None
    threshold: float | None


Curve = tuple[list[int], list[float]]
"""Steps and values, in the order of the steps."""


def valley_averages(run: RunData) -> list[str]:
    """Name the averages that have a valley, "swad" first."""
    names = {r.average for r in run.records if r.average is not None and r.metric in ("start_step", "threshold")}
    return sorted(names, key=lambda name: (name != "swad", name))


def valley(run: RunData, average: str) -> Valley | None:
    """Read the last state of an average's valley; None if the run has none by that name."""
    final: dict[str, float] = {}
    for record in run.records:
        if record.average == average and record.metric in (
            "start_step",
            "end_step",
            "n_averaged",
            "threshold",
        ):
            final[record.metric] = record.value
    if not final:
        return None

    def whole(metric: str) -> int | None:
        value = final.get(metric, math.nan)
        return int(value) if math.isfinite(value) else None

    threshold = final.get("threshold", math.nan)
    return Valley(
        average,
        whole("start_step"),
        whole("end_step"),
        whole("n_averaged"),
        threshold if math.isfinite(threshold) else None,
    )


def source_curves(run: RunData, metric: str) -> dict[str, Curve]:
    """Give the validation curve of every source domain for the live weights."""
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for record in run.records:
        if (
            record.metric == metric
            and record.split == "out"
            and record.average is None
            and record.domain is not None
            and record.domain not in run.targets
        ):
            points[record.domain][record.step] = record.value
    return {domain: _curve(points[domain]) for domain in sorted(points)}


def mean_curve(curves: Iterable[Curve]) -> Curve:
    """Average curves over domains at the steps they all have; the valley is found on this mean."""
    tables = [dict(zip(*curve, strict=True)) for curve in curves]
    if not tables:
        return [], []
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    return steps, [math.fsum(table[step] for table in tables) / len(tables) for step in steps]


def _curve(points: dict[int, float]) -> Curve:
    steps = sorted(points)
    return steps, [points[step] for step in steps]


def final_value(run: RunData, metric: str) -> float | None:
    """Give the last value of a run-level metric, such as a timing."""
    found = [r.value for r in run.records if r.metric == metric and r.domain is None and r.average is None]
    return found[-1] if found else None


def last_step(run: RunData) -> int:
    """Give the last step the run recorded anything at."""
    return max((record.step for record in run.records), default=0)


def warnings(runs: Sequence[RunData]) -> list[str]:
    """List what a reader of the results should know: one sentence for each fault."""
    found = []
    adrift: dict[str, list[str]] = defaultdict(list)  # by average, the runs whose loss never converged
    for run in runs:
        name = describe(run)
        steps = run.config.get("steps")
        if not run.finished:
            found.append(f"{name} is unfinished: it reached step {last_step(run):,} of {steps or 'unknown'}.")
        for average in valley_averages(run):
            state = valley(run, average)
            if run.finished and state is not None and state.threshold is None:
                adrift[average].append(name)
        broken = sum(
            r.metric in ("loss", "valley_loss", "train_loss") and not math.isfinite(r.value) for r in run.records
        )
        if broken:
            found.append(f"{name} recorded {broken} losses that are not finite.")
    for average, names in adrift.items():
        some = "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if names[3:] else "")
        found.append(f"{some}: the validation loss never converged for {average}, so the range is a fallback.")
    found += _mixtures(runs) + _repeats(runs) + _gaps(runs)
    return found


def _mixtures(runs: Sequence[RunData]) -> list[str]:
    """Say where one table compares runs that were not made alike."""
    found = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        members = [run for run in runs if run.dataset == dataset]
        for name in sorted({name for run in members for name in run.settings("protocol")}):
            values = Counter(str(run.config.get(name)) for run in members)
            if len(values) > 1:
                listed = ", ".join(f"{value} ({n} run{'s' * (n > 1)})" for value, n in values.most_common())
                found.append(f"The runs on {dataset} differ in {name}: {listed}. Report folders of like runs apart.")
    return found


def _repeats(runs: Sequence[RunData]) -> list[str]:
    """Two runs of one setting are not two trials: selection would quietly take the better."""
    counts = Counter(
        (
            run.dataset,
            run.algorithm,
            run.targets,
            run.trial,
            run.config.get("seed"),
            hyperparameters(run),
        )
        for run in runs
    )
    return [
        f"{algorithm_name(algorithm)} on {dataset}, target {' and '.join(targets)}, trial {trial}: "
        f"{count} runs have the same setting, and selection takes the better."
        for (dataset, algorithm, targets, trial, _, _), count in counts.items()
        if count > 1
    ]


def _gaps(runs: Sequence[RunData]) -> list[str]:
    """A mean over targets that have different trials compares unlike things."""
    found = []
    trials: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        if len(run.targets) == 1:
            trials[run.dataset, run.algorithm][run.targets[0]].add(run.trial)
    for (dataset, algorithm), by_target in trials.items():
        every = set().union(*by_target.values())
        for target, have in sorted(by_target.items()):
            if have != every:
                missing = ", ".join(map(str, sorted(every - have)))
                found.append(f"{algorithm_name(algorithm)} on {dataset}: target {target} lacks trial {missing}.")
    return found


def describe(run: RunData) -> str:
    """Name a run for a reader."""
    target = " and ".join(run.targets) or "no target"
    return f"{algorithm_name(run.algorithm)} on {run.dataset}, target {target}, trial {run.trial}"


# ------------------------------------------------------------ names as a reader expects them


def algorithm_name(algorithm: str) -> str:
    """Spell an algorithm as the paper does where the paper has it.

    >>> algorithm_name("group_dro"), algorithm_name("coral+sam"), algorithm_name("my_method")
    ('GroupDRO', 'CORAL + SAM', 'my_method')
    """

    def plain(name: str) -> str:
        return "".join(letter for letter in name.lower().replace("π", "pi") if letter.isalnum())

    spellings = {plain(row.name): row.name for number in (2, 3) for row in published.table(number).rows}
    return " + ".join(spellings.get(plain(part), part) for part in algorithm.split("+"))


def method_name(algorithm: str, average: str | None) -> str:
    """Name a row of a results table.

    >>> method_name("erm", "best"), method_name("erm", "swad"), method_name("coral", "swad_no_overfit")
    ('ERM (best)', 'SWAD', 'CORAL + SWAD no overfit')
    """
    plain = algorithm_name(algorithm)
    if average is None:
        return f"{plain} (chosen step)"
    if average.startswith("erm_"):
        return f"{plain} ({average.removeprefix('erm_')})"
    first, *rest = average.split("_")
    named = " ".join([first.upper() if first in ("swad", "swa", "sma", "ema") else first, *rest])
    return named if plain == "ERM" else f"{plain} + {named}"
