"""Windows of kept segments: which of them tables show, how all compare with SWAD's average, and their heat map.

A window is a range of whole segments; its weights are named by its first and last step, such as "201-400". SWAD itself
begins with the weights of a single update, the evaluation at which the valley starts, and so is almost a window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swad.testbed.results.compare import compare, is_clear, units_of
from swad.util.paired import ALPHA

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from swad.testbed.results.measured_report import MeasuredReport

ACCURACY, FIRST, LAST = "Accuracy, %", "First step", "Last step"
"""Quantities."""
DENSE_SWA = 0.2
"""SWA averages this last share of training."""
LAST_SHARE = f"last {100 * DENSE_SWA:g} %"
BEST = {"unseen": "best on the target (oracle)", "seen": "best on validation (fit-on-val)"}
"""The windows that each run chooses by the accuracy on a side."""
LIVE = {"last": "live weights, last step", "best": "live weights, best on validation"}
"""Saved weights without an average."""
PANELS = {"unseen": "Held-out target", "seen": "Source validation"}

Window = tuple[int, int]
"""The first and the last step of a window."""

_OF_RUN = ["dataset", "algorithm", "settings", "target", "trial"]


def window_of(weights: str) -> Window | None:
    """Return the first and the last step of a window by its name; None for weights that were saved.

    >>> window_of("201-400"), window_of("swad"), window_of("step-000300")
    ((201, 400), None, None)
    """
    match = re.fullmatch(r"(\d+)-(\d+)", weights)
    return None if match is None else (int(match[1]), int(match[2]))


def choices(values: pd.DataFrame) -> pd.DataFrame:
    """Return what tables show of rows of `measured`: weights that were saved, and the windows that matter.

    Each run chooses its own windows; together they separate what the start and the end of its average add.
    """
    import pandas as pd

    lines = []
    for place, run in values.groupby(_OF_RUN, sort=False):
        dataset, algorithm, settings, target, trial = place
        by_side = {
            side: rows.pivot_table(index=["weights", "method"], columns="quantity", values="value", sort=False)
            for side, rows in run.groupby("side", sort=False)
        }
        windows = {side: _windows(table) for side, table in by_side.items()}
        chosen = None
        for side, table in by_side.items():
            saved = {(w, method): row for (w, method), row in table.iterrows() if window_of(w) is None}
            (_, own), average = next(iter(saved.items()))
            if chosen is None:
                chosen = _choose(own, (average[FIRST], average[LAST]), windows)
            named = {own: average}
            named |= {label: table.xs(f"{w[0]}-{w[1]}").iloc[0] for label, w in chosen.items() if label != BEST[side]}
            named |= {LIVE.get(w, method): row for (w, method), row in saved.items() if method != own}
            best = chosen[BEST[side]]
            named[BEST[side]] = table.xs(f"{best[0]}-{best[1]}").iloc[0]
            for label, row in named.items():
                for quantity, value in row.dropna().items():
                    lines.append((dataset, algorithm, label, target, trial, side, quantity, value, label, settings))
    return pd.DataFrame(lines, columns=list(values.columns))


def _windows(table: pd.DataFrame) -> dict[Window, float]:
    found = {window_of(weights): accuracy for (weights, _), accuracy in table[ACCURACY].items()}
    return {window: found[window] for window in sorted(window for window in found if window is not None)}


def _choose(own: str, average: tuple[float, float], windows: Mapping[str, Mapping[Window, float]]) -> dict[str, Window]:
    """Return the windows of a run by label.

    Args:
        own: The label of its average.
        average: The first and the last step of that.
        windows: Accuracies by side and window.
    """
    every = next(iter(windows.values()))
    begin, end = nearest_window(average, every)
    starts, last = sorted({first for first, _ in every}), max(last for _, last in every)
    late = min(starts, key=lambda start: abs(start - 1 - (1 - DENSE_SWA) * last))
    chosen = {
        f"{own}'s window, whole segments": (begin, end),
        f"{own}'s start to the last step": (begin, last),
        f"first step to {own}'s end": (starts[0], end),
        "all steps": (starts[0], last),
        f"{LAST_SHARE} (SWA)": (late, last),
        "last segment": (starts[-1], last),
    }
    return chosen | {BEST[side]: best_window(windows[side]) for side in BEST if side in windows}


def nearest_window(average: tuple[float, float], windows: Iterable[Window]) -> Window:
    """Return the window of whole segments that is nearest to the range of an average.

    >>> nearest_window((200, 400), [(1, 100), (1, 500), (101, 500), (201, 300), (201, 400), (201, 500)])
    (201, 400)
    """
    windows = list(windows)
    begin = min(sorted({first for first, _ in windows}), key=lambda first: abs(first - average[0]))
    ends = sorted(last for first, last in windows if first == begin)
    return begin, min(ends, key=lambda last: abs(last - average[1]))


def best_window(accuracies: Mapping[Window, float]) -> Window:
    """Return the window with the highest accuracy; among equals the longest, then the earliest, as fit-on-val.

    >>> best_window({(1, 4): 0.5, (1, 8): 0.6, (5, 8): 0.6, (9, 9): 0.6})
    (1, 8)
    """
    return max(sorted(accuracies), key=lambda window: (accuracies[window], window[1] - window[0]))


# ------------------------------------------------------------ all windows


def compare_windows(values: pd.DataFrame) -> pd.DataFrame:
    """Compare every window of one dataset, side and settings with the average, corrected for all windows together.

    Windows overlap, so their differences rise and fall together. Holm's correction, which takes hundreds of tests as if
    each were another question, would find next to nothing: signs are flipped in all windows at once instead.
    """
    rows = values[values["quantity"] == ACCURACY]
    baseline = rows["method"].iloc[0]
    is_shown = (rows["method"] == baseline) | rows["weights"].map(window_of).notna()
    rows = rows[is_shown].assign(method=lambda frame: frame["weights"].where(frame["method"] != baseline, baseline))
    means = rows.groupby(["method", "target", "trial"], sort=False)["value"].mean().reset_index()
    return compare({ACCURACY: units_of(means)}, baseline, together=True)


def window_counts(tests: pd.DataFrame) -> str:
    """Count the windows whose difference from the average is shown, with and without a correction for their number."""
    if not len(tests) or tests["p"].isna().all():
        return ""
    higher, shown, alone = tests["difference"] > 0, tests["corrected_p"] <= ALPHA, tests["p"] <= ALPHA
    baseline = tests["baseline"].iloc[0]
    corrected = "for all windows together: Westfall and Young instead of Holm, because windows overlap"
    if (tests["test"] != "sign flips").any():
        corrected = "by Holm, since the runs are too few to correct all windows together"
    return (
        f"Of {len(tests)} windows, {(shown & higher).sum()} are shown to be better than {baseline} and "
        f"{(shown & ~higher).sum()} to be worse (corrected {corrected}). Without correction it is "
        f"{(alone & higher).sum()} and {(alone & ~higher).sum()}, where chance alone would give "
        f"about {ALPHA * len(tests):.0f} in total."
    )


def windows_figure(report: MeasuredReport, dataset: str) -> Figure:
    """Draw the mean difference of every window from the average, one panel for each side and settings."""
    from swad.testbed.results.figures.heat_map import HeatMap, Mark, heat_map_figure

    panels, baseline = [], ""
    for place in report.by_place:
        tests = report.differences
        for name, value in zip(("dataset", "side", "settings"), place, strict=True):
            tests = tests[tests[name] == value]
        if place[0] != dataset or tests.empty:
            continue
        windows = {window_of(test.method): test for test in tests.itertuples()}
        cells: dict[Window, Any] = {window: windows[window] for window in windows if window is not None}
        starts, ends = (sorted({window[i] for window in cells}) for i in (0, 1))
        at = {window: (starts.index(window[0]), ends.index(window[1])) for window in cells}
        best = best_window({window: test.value for window, test in cells.items()})
        late = min(starts, key=lambda start: abs(start - 1 - (1 - DENSE_SWA) * ends[-1])), ends[-1]
        first = next(iter(cells.values()))
        baseline = str(first.baseline)
        averages = _averages(report.values, place, baseline)
        panels.append(
            HeatMap(
                title=f"{PANELS.get(place[1], place[1])} ({baseline}: {first.baseline_value:.1f} %)",
                cells={at[window]: test.difference for window, test in cells.items()},
                columns=[f"{start - 1:,}" for start in starts],
                rows=[f"{end:,}" for end in ends],
                outlined={at[window] for window, test in cells.items() if is_clear(test)},
                dotted={at[w] for w, test in cells.items() if test.p <= ALPHA and not is_clear(test)},
                marks=(Mark("best in this panel", at[best], "D"), Mark(LAST_SHARE, at[late], "s")),
                runs=[(_position(start, starts), _position(end, ends)) for start, end in averages],
            )
        )
    return heat_map_figure(
        panels,
        title=f"{dataset}: all windows",
        x="Window starts after step",
        y="Window ends with step",
        label=f"Accuracy minus that of {baseline}, points",
        runs=baseline,
    )


def _averages(values: pd.DataFrame, place: tuple[str, str, str], baseline: str) -> list[tuple[float, float]]:
    """Return the first and the last step of the average of every run."""
    of_place = (values["dataset"] == place[0]) & (values["side"] == place[1]) & (values["settings"] == place[2])
    own = values[of_place & (values["method"] == baseline) & values["quantity"].isin([FIRST, LAST])]
    table = own.pivot_table(index=["target", "trial"], columns="quantity", values="value")
    return list(zip(table[FIRST], table[LAST], strict=True))


def _position(step: float, steps: Sequence[int]) -> float:
    """Return where a step lies between those of whole segments."""
    import numpy as np

    return float(np.interp(step, steps, range(len(steps))))
