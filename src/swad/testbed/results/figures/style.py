"""Style and files of all figures: colors, fonts, legend, and saving as SVG, PDF, PNG or as part of a page."""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.util.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
"""The colors of Okabe and Ito, which color-blind readers can tell apart; the strongest contrasts come first."""

METHOD_COLORS = {"ERM": 0, "SAM": 3, "SWA (cyclic)": 4, "SWA": 2, "SWAD": 1}
"""Indices in the palette of the paper's five methods. Other methods take the remaining colors."""
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
"""Line styles of one method after the other: a line that covers another one shows it in the gaps."""

INK, FAINT, RANGE = "#1a1a1a", "#8a8f98", "#4c6fff"
FORMATS = ("svg", "pdf", "png")

_STYLE = {
    "font.size": 9,
    "axes.axisbelow": True,
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
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "pdf.fonttype": 42,  # keep text as text, for papers
    "svg.fonttype": "none",
    "svg.hashsalt": "swad",  # make the file reproducible
}


_FALLBACKS = (
    *(f"Noto Sans CJK {language}" for language in ("JP", "SC", "TC", "KR")),
    *("Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Malgun Gothic", "Arial Unicode MS"),
)
"""Fonts with characters that matplotlib's own lacks, for names of domains and classes."""


def require_matplotlib() -> Any:
    """Return matplotlib, or raise an error that says how to install it."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'swad[report]'") from None
    return matplotlib


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw or save figures in the block with this project's style."""
    with require_matplotlib().rc_context({**_STYLE, "font.family": ["sans-serif", *_installed_fallbacks()]}):
        with warnings.catch_warnings(record=True) as caught:
            yield
        missing: set[str] = set()
        for warning in caught:
            if glyph := re.match(r"Glyph (\d+) .*missing from font", str(warning.message)):
                missing.add(chr(int(glyph[1])))
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if missing:
            _warn_missing("".join(sorted(missing)))


@cache
def _installed_fallbacks() -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return tuple(name for name in _FALLBACKS if name in installed)


@cache  # once, not for every figure and every character
def _warn_missing(characters: str) -> None:
    warnings.warn(
        f"figures show boxes for characters that no installed font has ({characters}): install Noto Sans CJK, or "
        "rename what has them",
        stacklevel=2,
    )


def method_colors(methods: Sequence[str]) -> dict[str, int]:
    """Return an index in the palette for every method; the paper's methods have the same color in every figure.

    >>> method_colors(["SWAD", "ERM (best)", "CORAL"])
    {'SWAD': 1, 'ERM (best)': 0, 'CORAL': 2}
    """
    colors: dict[str, int] = {}
    for method in methods:
        base = re.split(r" \((?:best|last|window)", method)[0]
        if base in METHOD_COLORS and METHOD_COLORS[base] not in colors.values():
            colors[method] = METHOD_COLORS[base]
    free = [index for index in range(len(PALETTE)) if index not in colors.values()]
    for method in methods:
        if method not in colors:
            colors[method] = free.pop(0) if free else len(colors) % len(PALETTE)
    return colors


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches. Without pyplot, it has no global state and no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figures(figure: Figure, stem: str | os.PathLike[str], formats: Iterable[str]) -> list[Path]:
    """Write a figure in several formats, and return the files; `stem` is their path without the suffix."""
    return [save_figure(figure, f"{os.fspath(stem)}.{suffix}") for suffix in formats]


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure in the format of the path's suffix: .svg, .pdf or .png."""
    path = Path(path)
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise ValueError(f"the suffix of a figure must be one of {', '.join(FORMATS)}; got {path.name!r}")
    # Without a date, a figure changes only when its records do.
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[suffix]
    with figure_style(), atomic_write(path) as partial:
        figure.savefig(partial, format=suffix, dpi=200, metadata=metadata)
    return path


def add_legend(figure: Figure, order: Callable[[str], Any] | None = None, title: str = "") -> None:
    """Add one legend of all labeled lines below the panels, in as many lines as it needs; equal labels are listed once.

    Args:
        order: Sort key of the labels; by default the order of drawing.
        title: A note above the labels.
    """
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    labels = list(handles) if order is None else sorted(handles, key=order)
    per_line = max(1, int(figure.get_figwidth() / (0.45 + 0.075 * max(map(len, labels)))))
    lines = math.ceil(len(labels) / per_line)
    figure.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=math.ceil(len(labels) / lines),
        fontsize=8.5,
        handlelength=1.6,
        columnspacing=1.2,
        title=title,
        title_fontsize=7.5,
    )


def themed_svg(figure: Figure, prefix: str, label: str) -> str:
    """Return a figure as an `<svg>` element whose colors are CSS variables of the page.

    Args:
        prefix: Prefix of the element's ids, which makes them unique in the page.
        label: Description for screen readers.
    """
    buffer = io.StringIO()
    with figure_style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    variables = {INK: "var(--ink)", FAINT: "var(--faint)", RANGE: "var(--range)"}
    variables |= {color: f"var(--series-{number})" for number, color in enumerate(PALETTE, start=1)}
    for color, variable in variables.items():
        text = text.replace(color, variable)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # it would apply to the whole page
    text = re.sub(r"font-family: [^;]*;", "", text)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1).strip()
