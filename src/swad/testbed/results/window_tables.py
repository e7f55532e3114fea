"""Windows of segments as a table of the choices that matter, and as CSV files with every number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from swad.testbed.results.comparison_tables import comparisons_csv, interval_cell
from swad.testbed.results.comparisons import UNITS, Comparison, p_text
from swad.testbed.results.tables import Cell, Row, Table, csv_text
from swad.testbed.results.windows import BEST, RunWindows, Window, WindowGroup
from swad.util.names import counted
from swad.util.paired import ALPHA

SIDE_NAMES = {"target": "the target", "validation": "source validation"}


def choices_table(group: WindowGroup, side: str, windows: Mapping[Window, Comparison]) -> Table:
    """Build the table that shows what the start and the end of the average add: accuracies, and paired differences.

    Args:
        group: The runs.
        side: "target" or "validation".
        windows: The comparisons of all windows, which a note counts.
    """
    comparisons, choices = group.compare_choices(side), group.choices()
    any_comparison = next(iter(comparisons.values()))
    own = Row(
        group.baseline,
        (
            Cell(text=_steps([(run.start, run.end) for run in group.runs])),
            Cell(100 * any_comparison.baseline_accuracy, decimals=2),
            *(Cell(text="") for _ in range(3)),
        ),
    )
    rows = [own]
    for label, comparison in comparisons.items():
        steps = Cell(text="")
        if label in choices:
            spans = [(group.segments[begin][0], group.segments[end][1]) for begin, end in choices[label]]
            steps = Cell(text=_steps(spans))
        rows.append(
            Row(
                label,
                (
                    steps,
                    Cell(100 * comparison.accuracy, decimals=2),
                    Cell(100 * comparison.difference, decimals=2, signed=True, mark=f" {comparison.arrow}".rstrip()),
                    interval_cell(comparison.test),
                    Cell() if comparison.corrected_p is None else Cell(text=p_text(comparison.corrected_p)),
                ),
            )
        )
    columns = ("Steps", "Accuracy, %", f"minus {group.baseline}", "95 % interval", "Corrected p")
    title = f"Windows of {group.name}: accuracy on {SIDE_NAMES[side]}"
    return Table(title, columns, tuple(rows), tuple(_notes(group, side, comparisons, windows)), corner="Average of")


def _notes(
    group: WindowGroup, side: str, comparisons: Mapping[str, Comparison], windows: Mapping[Window, Comparison]
) -> list[str]:
    comparison = next(iter(comparisons.values()))
    run = group.runs[0]
    images = "all images" if run.images is None else f"at most {run.images} images"
    n_runs = counted(len(group.runs), "run")
    notes = [f"{n_runs}, {images} of each domain. Differences are paired by target and trial."]
    if group.left_out:
        notes.append(f"Without trial {', '.join(map(str, group.left_out))}, which lacks targets.")
    if comparison.n_trials == 1:
        notes.append("One trial shows no spread between trainings, so no difference is claimed: train more trials.")
    else:
        notes[0] += f" Over {comparison.test.n} {comparison.unit}: they would hold for {UNITS[comparison.unit]}."
        notes.append(
            f"Intervals are not corrected for their number; p is, by Holm, for {comparison.n_comparisons} rows. "
            "↑ and ↓: a corrected p of at most 0.05; –: no difference shown, which does not mean that there is none."
        )
        notes.append(window_counts(windows, group.baseline))
    ended = sum(each.own[1] == len(group.segments) - 1 for each in group.runs)
    notes.append(f"{group.baseline} averages up to the last segment in {ended} of {n_runs}.")
    notes.append(f"The {BEST[side]} has no test: it was chosen by the accuracy shown, which is therefore too high.")
    if side == "validation":
        chosen = f"{group.baseline} and the" if run.average.startswith("swad") else "The"
        notes.append(f"{chosen} best live weights were also chosen on validation images.")
    return notes


def window_counts(windows: Mapping[Window, Comparison], baseline: str) -> str:
    """Count the windows whose difference from the average is shown, with and without a correction for their number."""

    def counts(shown: Iterable[Comparison]) -> tuple[int, int]:
        signs = [comparison.difference > 0 for comparison in shown]
        return sum(signs), len(signs) - sum(signs)

    better, worse = counts(c for c in windows.values() if c.is_clear)
    better_alone, worse_alone = counts(c for c in windows.values() if c.is_clear_alone)
    return (
        f"Of {len(windows)} windows, {better} are shown to be better than {baseline} and {worse} to be worse "
        f"(corrected for the number of windows). Without correction it is {better_alone} and {worse_alone}, where "
        f"chance alone would give about {ALPHA * len(windows):.0f} in total."
    )


def _steps(spans: Sequence[tuple[int, int]]) -> str:
    """Show the first and the last step of one window, or the ranges of several.

    >>> _steps([(1, 400), (201, 400)])
    '1–201 to 400'
    """
    texts = []
    for values in zip(*spans, strict=True):
        low, high = min(values), max(values)
        texts.append(f"{low:,}" if low == high else f"{low:,}–{high:,}")
    return " to ".join(texts)


# ------------------------------------------------------------ CSV


def windows_csv(runs: Iterable[RunWindows]) -> str:
    """Return every window of every run as comma-separated values in full precision."""
    names = ("run", "dataset", "algorithm", "target", "trial", "side")
    rows: list[list[object]] = [
        [*names, "first_step", "last_step", "accuracy", "average", "average_accuracy", "difference"]
    ]
    for run in runs:
        for side, accuracies in run.windows.items():
            own = run.weights[side][run.average]
            for (begin, end), accuracy in accuracies.items():
                steps = run.segments[begin][0], run.segments[end][1]
                identity = (run.run.path, *run.group, *run.unit, side)
                rows.append([*identity, *steps, accuracy, run.average, own, accuracy - own])
    return csv_text(rows)


def compared_windows_csv(group: WindowGroup, windows: Mapping[Window, Comparison]) -> str:
    """Return the comparison of every window over runs, with the columns of other comparisons."""
    return comparisons_csv(
        [
            replace(comparison, method=f"{group.segments[begin][0]}-{group.segments[end][1]}")
            for (begin, end), comparison in windows.items()
        ]
    )
