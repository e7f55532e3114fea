"""Figures: the curves a valley is found on, in the form of the paper's Figure 5.

Every source domain's validation curve against the step, the mean the detector sees, its threshold, and the
averaged range shaded between t_s and t_e. Written as SVG, PDF or PNG; `theme_svg` gives the same drawing with
its colors left to the page that shows it.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.results.runs import RunData
from swad.results.summary import Curve, Valley, mean_curve, source_curves, valley, valley_averages

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
"""Okabe and Ito's colors, which stay apart for color-blind readers, strongest contrasts first."""

INK, FAINT, RANGE = "#1a1a1a", "#8a8f98", "#4c6fff"
LABELS = {"loss": "Validation loss", "accuracy": "Validation accuracy, %"}
FORMATS = ("svg", "pdf", "png")

_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "pdf.fonttype": 42,  # text stays text in papers
    "svg.fonttype": "none",
    "svg.hashsalt": "swad",  # the same records give the same file
}


@contextmanager
def _style() -> Iterator[None]:
    try:
        import matplotlib
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'swad[report]'") from None
    with matplotlib.rc_context(_STYLE):
        yield


def valley_figure(
    run: RunData,
    average: str | None = None,
    metrics: Sequence[str] = ("loss", "accuracy"),
    *,
    size: tuple[float, float] = (4.7, 2.9),
    domains: Sequence[str] = (),
    bare: bool = False,
) -> Figure:
    """Draw one run: a panel for each metric. `average` is the valley shown, by default the run's first.

    `size` is that of a panel, in inches. `domains` fixes which domain has which color, for figures to be
    shown together. `bare` leaves out title, legend and typeset labels, for a page that has its own.
    """
    with _style():
        return _draw([run], average, metrics, size, domains=domains, bare=bare)


def valleys_figure(
    runs: Sequence[RunData],
    average: str | None = None,
    metrics: Sequence[str] = ("loss", "accuracy"),
    *,
    size: tuple[float, float] = (3.1, 2.2),
) -> Figure:
    """Draw several runs side by side, as a rule one for each target: a column each, a row for each metric."""
    with _style():
        return _draw(runs, average, metrics, size)


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as the path's ending says: .svg, .pdf or .png."""
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ValueError(f"figures are written as {', '.join(FORMATS)}, got {path.name!r}: change the ending")
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date inside, so that a figure changes only when its records do.
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with _style():
        figure.savefig(path, dpi=200, metadata=metadata)
    return path


def save_all(
    runs: Sequence[RunData],
    folder: str | os.PathLike[str],
    average: str | None = None,
    formats: Sequence[str] = ("svg", "pdf"),
) -> list[Path]:
    """Write a figure for each dataset, algorithm and trial, targets side by side; return the paths."""
    groups: dict[tuple[str, str, int], dict[tuple[str, ...], RunData]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.algorithm, run.trial), {}).setdefault(run.targets, run)
    written = []
    for (dataset, algorithm, trial), by_target in groups.items():
        figure = valleys_figure([by_target[target] for target in sorted(by_target)], average)
        stem = re.sub(r"[^\w.-]+", "_", f"valley-{dataset}-{algorithm}-trial{trial}")
        written += [save(figure, Path(folder) / f"{stem}.{kind}") for kind in formats]
    return written


def _draw(
    runs: Sequence[RunData],
    average: str | None,
    metrics: Sequence[str],
    size: tuple[float, float],
    *,
    domains: Sequence[str] = (),
    bare: bool = False,
) -> Figure:
    from matplotlib.figure import Figure  # no pyplot: no global state, no window, any thread

    if not runs:
        raise ValueError("a figure needs one run at least, got none")
    shape = (len(metrics), len(runs))
    room = 0.0 if bare else 0.45
    figure = Figure(figsize=(size[0] * shape[1], size[1] * shape[0] + room), layout="constrained")
    panels = figure.subplots(*shape, squeeze=False, sharex="col")
    # A domain keeps its color in every panel, though each target leaves out another one.
    drawn = {name for run in runs for metric in metrics for name in source_curves(run, metric)}
    order = [*domains, *sorted(drawn - set(domains))]
    colors = {domain: PALETTE[place % len(PALETTE)] for place, domain in enumerate(order)}
    for column, run in enumerate(runs):
        names = valley_averages(run)
        name = average or (names[0] if names else None)
        state = valley(run, name) if name else None
        for row, metric in enumerate(metrics):
            axes = panels[row][column]
            _panel(axes, run, metric, state, colors)
            if row == 0:
                _mark_range(axes, state, bare)
                if not bare:
                    axes.set_title(f"target: {'+'.join(run.targets)}", loc="left", pad=18, color=INK)
            if column == 0 and not bare:
                axes.set_ylabel(LABELS.get(metric, metric))
            if row == len(metrics) - 1:
                axes.set_xlabel("Step")
    if not bare:
        _legend(figure, [axes for row in panels for axes in row], size[0] * shape[1])
    return figure


def _panel(axes: Axes, run: RunData, metric: str, state: Valley | None, colors: dict[str, str]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    scale = 100.0 if metric == "accuracy" else 1.0
    curves = source_curves(run, metric)
    if state is not None and state.start is not None and state.end is not None:
        axes.axvspan(state.start, state.end, color=RANGE, alpha=0.10, linewidth=0, zorder=0)
        for step in (state.start, state.end):
            axes.axvline(step, color=RANGE, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    for domain, (steps, values) in curves.items():
        axes.plot(steps, [scale * value for value in values], color=colors[domain], label=domain, zorder=3)
    steps, values = mean_curve(curves.values())
    if len(curves) > 1:
        axes.plot(steps, [scale * value for value in values], color=INK, linewidth=2.0, label="mean", zorder=2.5)
    if metric == "loss" and state is not None and state.threshold is not None:
        axes.axhline(state.threshold, color=INK, linewidth=1.0, linestyle=(0, (5, 3)), label="threshold", zorder=2)
    total = run.config.get("steps")
    last = max((step for curve in curves.values() for step in curve[0]), default=1)
    axes.set_xlim(0, max(last, total if isinstance(total, int) else 0))
    low, high = _limits(list(curves.values()), metric, state)
    if math.isfinite(low) and math.isfinite(high):
        axes.set_ylim(scale * low, scale * high)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.tick_params(length=3)
    axes.set_axisbelow(True)


def _limits(curves: Sequence[Curve], metric: str, state: Valley | None) -> tuple[float, float]:
    """Fit the axis to what follows the first tenth: the fall from initialization would flatten the valley."""
    late = []
    for steps, values in curves:
        late += [value for step, value in zip(steps, values, strict=True) if step >= 0.1 * steps[-1]]
    late = [value for value in late if math.isfinite(value)]
    if not late:
        return math.nan, math.nan
    if metric == "accuracy":
        low, high = min(late), max(late)
        margin = 0.06 * (high - low or 0.1)
        return max(0.0, low - margin), min(1.005, high + margin)
    if state is not None and state.threshold is not None:
        late.append(1.1 * state.threshold)
    return 0.0, 1.06 * max(late)


def _mark_range(axes: Axes, state: Valley | None, bare: bool) -> None:
    """Say t_s and t_e above the panel, in one label over the range: two would collide when it is short."""
    if state is None or state.start is None or state.end is None:
        return
    left, right = axes.get_xlim()
    middle = ((state.start + state.end) / 2 - left) / ((right - left) or 1)
    # Centerd over the range, unless that would run out of the panel.
    place, align = min(
        ((abs(middle - at), at, align) for at, align in ((0.0, "left"), (1.0, "right"))),
        key=lambda found: found[0],
    )[1:]
    if 0.3 <= middle <= 0.7:
        place, align = middle, "center"
    axes.text(
        place,
        1.03,
        f"{state.start:,} – {state.end:,}" if bare else f"$t_s$ = {state.start:,}   $t_e$ = {state.end:,}",
        transform=axes.transAxes,
        ha=align,
        va="bottom",
        color=RANGE,
        fontsize=8.5,
    )


def _legend(figure: Figure, panels: Sequence[Axes], width: float) -> None:
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    order = sorted(entries, key=lambda label: (label in ("mean", "threshold"), label))
    fit = max(1, int(width / (0.45 + 0.075 * max(map(len, order)))))
    lines = math.ceil(len(order) / fit)
    figure.legend(
        [entries[label] for label in order],
        order,
        loc="outside lower center",
        ncols=math.ceil(len(order) / lines),
        fontsize=8.5,
        handlelength=1.6,
        columnspacing=1.2,
    )


def theme_svg(figure: Figure, prefix: str, label: str) -> str:
    """Return a figure as an `<svg>` element whose colors are the page's CSS variables.

    `prefix` makes its ids unique within the page; `label` is read out by screen readers.
    """
    from html import escape

    buffer = io.StringIO()
    with _style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    variables = {INK: "var(--ink)", FAINT: "var(--faint)", RANGE: "var(--range)"}
    variables |= {color: f"var(--series-{place})" for place, color in enumerate(PALETTE, start=1)}
    for color, variable in variables.items():
        text = text.replace(color, variable)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # it speaks to every element of the page
    text = re.sub(r"font-family: [^;]*;", "", text)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1).strip()
