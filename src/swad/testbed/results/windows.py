"""The accuracy of every window of segments, against that of the window which SWAD chose.

`swad.testbed.experiments.run_windows` measures the rows of a run's `windows.jsonl`; this module reads and compares
them. A window consists of whole segments, and is named here by the numbers of its first and its last segment. SWAD
itself begins with the weights of a single update, the evaluation at which the valley starts, and so is almost a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

from swad.testbed.results.comparisons import Comparison, compare_accuracies, compare_together, complete_trials
from swad.testbed.results.labels import algorithm_label, method_label
from swad.testbed.results.measurement_rows import Row, read_rows
from swad.testbed.results.run_data import RunData
from swad.util.grouping import group_by
from swad.util.statistics import mean

WINDOWS = "windows.jsonl"
"""The accuracies of a run's windows, in its directory."""
SIDES = ("target", "validation")
DENSE_SWA = 0.2
"""SWA averages this last share of training."""
LAST_SHARE = f"last {100 * DENSE_SWA:g} %"

BEST = {"target": "best on the target (oracle)", "validation": "best on validation (fit-on-val)"}
"""Labels of the windows that are chosen by the accuracy on a side, each run by itself."""
LIVE = {"last": "live weights, last step", "best": "live weights, best on validation"}
"""Saved weights without an average, which are compared too, with their labels."""

Window = tuple[int, int]
"""The numbers of the first and the last segment, both inside."""


@dataclass(frozen=True)
class RunWindows:
    """The accuracies of all windows of one run on one or both sides, and of weights that the run saved."""

    run: RunData
    average: str
    """The average of the run that the windows are compared with."""
    start: int
    end: int
    """The first and the last update of that average."""
    segments: tuple[tuple[int, int], ...]
    """The first and the last update of every segment."""
    windows: Mapping[str, Mapping[Window, float]] = field(repr=False)
    """Mean accuracy over domains by side and window; sides whose measurement is not complete are left out."""
    weights: Mapping[str, Mapping[str, float]] = field(repr=False)
    """The same of saved weights, by side and name."""
    images: int | None = None
    """Number of images of every domain; None for all."""
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)
    """All settings of the measurement, as stored."""

    @property
    def group(self) -> tuple[str, str]:
        """Dataset, as in the titles of tables, and algorithm: the runs that are compared together."""
        return self.run.table_name, self.run.algorithm

    @property
    def unit(self) -> tuple[str, int]:
        """Target and trial."""
        return self.run.target, self.run.trial

    @property
    def own(self) -> Window:
        """The window of whole segments that is nearest to the run's average."""
        begin = min(range(len(self.segments)), key=lambda k: abs(self.segments[k][0] - self.start))
        return begin, min(range(begin, len(self.segments)), key=lambda k: abs(self.segments[k][1] - self.end))

    def n_updates(self, window: Window) -> int:
        """Return how many updates a window has."""
        return self.segments[window[1]][1] - self.segments[window[0]][0] + 1

    def best(self, side: str) -> Window:
        """Return the window with the highest accuracy; among equals the longest, then the earliest, as fit-on-val."""
        accuracies = self.windows[side]
        return max(accuracies, key=lambda window: (accuracies[window], self.n_updates(window)))


def all_windows(n_segments: int) -> list[Window]:
    """Return all windows of a number of segments.

    >>> all_windows(2)
    [(0, 0), (0, 1), (1, 1)]
    """
    return list(combinations_with_replacement(range(n_segments), 2))


# ------------------------------------------------------------ stored rows


def read_windows(run: RunData) -> list[RunWindows]:
    """Read the measurements of a run that are complete on at least one side; that measured last comes last."""
    rows = read_rows(run.path, WINDOWS)
    by_key = group_by(rows, lambda row: str(row["key"]))
    shown = {row["key"]: number for number, row in enumerate(rows) if row["kind"] == "shown"}
    measured = [_measurement(run, by_key[key]) for key in sorted(by_key, key=lambda key: shown.get(key, -1))]
    return [each for each in measured if each is not None and each.windows]


def _measurement(run: RunData, rows: Sequence[Row]) -> RunWindows | None:
    settings = next((row for row in rows if row["kind"] == "settings"), None)
    if settings is None:
        return None
    segments = tuple((first, last) for first, last in settings["segments"])
    firsts, lasts = ({span[end]: k for k, span in enumerate(segments)} for end in (0, 1))
    windows: dict[str, dict[Window, float]] = {}
    weights: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["kind"] == "window":
            window = firsts[row["first"]], lasts[row["last"]]
            windows.setdefault(row["side"], {})[window] = mean(row["accuracy"].values())
        elif row["kind"] == "saved":
            weights.setdefault(row["side"], {})[row["weights"]] = mean(row["accuracy"].values())
    every = all_windows(len(segments))
    complete = [
        side
        for side in SIDES
        if len(windows.get(side, {})) == len(every) and settings["average"] in weights.get(side, {})
    ]
    return RunWindows(
        run=run,
        average=settings["average"],
        start=settings["range"][0],
        end=settings["range"][1],
        segments=segments,
        windows={side: {window: windows[side][window] for window in every} for side in complete},
        weights={side: weights[side] for side in complete},
        images=settings["images"],
        settings={name: value for name, value in settings.items() if name not in ("key", "kind")},
    )


# ------------------------------------------------------------ comparisons


@dataclass(frozen=True)
class WindowGroup:
    """The runs of one dataset and algorithm, which have the same segments and targets in every trial."""

    runs: tuple[RunWindows, ...]
    left_out: tuple[int, ...] = ()
    """Trials that lack targets, and are not compared."""

    def __post_init__(self) -> None:
        first = self.runs[0]
        seen: dict[tuple[str, int], RunWindows] = {}
        for run in self.runs:
            if (other := seen.setdefault(run.unit, run)) is not run:
                raise ValueError(
                    f"runs of one dataset and algorithm must differ in target or trial, but "
                    f"{other.run.path} and {run.run.path} do not (give the runs of one setting)"
                )
            if any(getattr(run, name) != getattr(first, name) for name in ("segments", "average", "images")):
                raise ValueError(
                    f"windows must have the same segments, average and images, but those of {first.run.path} and "
                    f"{run.run.path} do not (measure them together, or show their last ones with --stored)"
                )
        if not self.sides:
            raise ValueError("no side is complete in all of its runs (measure all with --evaluate-on both)")

    @property
    def name(self) -> str:
        """Dataset and algorithm."""
        dataset, algorithm = self.runs[0].group
        return f"{dataset}, {algorithm_label(algorithm)}"

    @property
    def baseline(self) -> str:
        """The label of the average that the windows are compared with."""
        return method_label("erm", self.runs[0].average)

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """The first and the last update of every segment."""
        return self.runs[0].segments

    @property
    def sides(self) -> list[str]:
        """The sides that are complete for all runs."""
        return [side for side in SIDES if all(side in run.windows for run in self.runs)]

    def compare_windows(self, side: str) -> dict[Window, Comparison]:
        """Compare every window with the runs' own average; p-values are corrected for all windows together."""
        windows = all_windows(len(self.segments))
        accuracies = {str(window): [run.windows[side][window] for run in self.runs] for window in windows}
        comparisons = self._compare(side, accuracies, compare_together)
        return {window: comparisons[str(window)] for window in windows}

    def compare_choices(self, side: str) -> dict[str, Comparison]:
        """Compare the windows of `choices`, and live weights, with the runs' own average.

        The windows that are the best on this very side have no test, because their differences are positive by choice.
        """
        accuracies = {
            label: [run.windows[side][window] for run, window in zip(self.runs, windows, strict=True)]
            for label, windows in self.choices().items()
        }
        for name, label in LIVE.items():
            if all(name in run.weights[side] for run in self.runs):
                accuracies[label] = [run.weights[side][name] for run in self.runs]
        best = BEST[side]
        (chosen,) = self._compare(side, {best: accuracies.pop(best)}).values()
        untested = replace(chosen.test, low=None, high=None, p=None, test=None)
        comparisons = self._compare(side, accuracies)
        return {**comparisons, best: replace(chosen, test=untested, corrected_p=None)}

    def _compare(
        self,
        side: str,
        accuracies: Mapping[str, Sequence[float]],
        compare: Callable[..., list[Comparison]] = compare_accuracies,
    ) -> dict[str, Comparison]:
        units = [run.unit for run in self.runs]
        own = [run.weights[side][run.average] for run in self.runs]
        by_unit = {
            label: dict(zip(units, values, strict=True)) for label, values in {self.baseline: own, **accuracies}.items()
        }
        comparisons = compare(by_unit, self.baseline, dataset=self.runs[0].group[0])
        return {comparison.method: comparison for comparison in comparisons}

    @property
    def dense_swa(self) -> Window:
        """The window of whole segments that is nearest to that of SWA."""
        last = len(self.segments) - 1
        start = (1 - DENSE_SWA) * self.segments[last][1]
        return min(range(last + 1), key=lambda k: abs(self.segments[k][0] - 1 - start)), last

    def choices(self) -> dict[str, list[Window]]:
        """Return one window for every run, by label; together they separate what the start and the end add."""
        own, last = self.baseline, len(self.segments) - 1
        chosen = [run.own for run in self.runs]
        choices = {
            f"{own}'s window, whole segments": chosen,
            f"{own}'s start to the last step": [(begin, last) for begin, _ in chosen],
            f"first step to {own}'s end": [(0, end) for _, end in chosen],
            "all steps": [(0, last) for _ in chosen],
            f"{LAST_SHARE} (SWA)": [self.dense_swa for _ in chosen],
            "last segment": [(last, last) for _ in chosen],
        }
        return choices | {BEST[side]: [run.best(side) for run in self.runs] for side in self.sides}


def by_group(runs: Iterable[RunWindows]) -> tuple[list[WindowGroup], list[str]]:
    """Return the runs of each dataset and algorithm together, of trials that hold out every target.

    Also return a note on each group whose runs cannot be compared. If no group can be, raise an error.
    """
    groups, notes = [], []
    for (dataset, algorithm), each in group_by(runs, lambda run: run.group).items():
        try:
            groups.append(_complete_trials(each))
        except ValueError as error:
            notes.append(f"not compared: {dataset}, {algorithm_label(algorithm)}: {error}")
    if notes and not groups:
        raise ValueError("; ".join(notes))
    return groups, notes


def _complete_trials(runs: Sequence[RunWindows]) -> WindowGroup:
    units = [run.unit for run in runs]
    targets = sorted({target for target, _ in units})
    trials = complete_trials(targets, units)
    if not trials:
        raise ValueError(
            f"no trial holds out all of {', '.join(targets)} (train the missing runs, or give those of one target)"
        )
    left_out = sorted({trial for _, trial in units} - set(trials))
    return WindowGroup(tuple(run for run in runs if run.run.trial in trials), tuple(left_out))
