"""Measure where SWAD begins on simulated and recorded loss curves, with and without `restart=True`.

    python benchmarks/false_starts.py --json benchmarks/results/false-starts.json --figure docs/false-start.png

A curve has 50 evaluations: a loss without noise, times lognormal noise. An averaged update is bad if its loss without
noise is above 1.5 times the best one.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from measurements import header, make_parser, write
from swad import LossValley
from swad.testbed.results.figures.style import INK, PALETTE, figure_style, new_figure, save_figure

N_CURVES = 800
LENGTH = 50
RESULTS = Path(__file__).parent / "results"

CURVES: dict[str, tuple[Callable[[int], float], float]] = {
    "slowly falling, noise 5 %": (lambda k: 0.2 + 0.8 * math.exp(-k / 12), 0.05),
    "slowly falling, noise 10 %": (lambda k: 0.2 + 0.8 * math.exp(-k / 12), 0.1),
    "plateau, then falling, noise 1 %": (lambda k: 0.69 if k < 5 else 0.4 + 0.29 * math.exp(-(k - 5) / 3), 0.01),
    "valley, noise 5 %": (lambda k: 0.2 + 1.6 * math.exp(-k / 1.5) + 0.002 * k, 0.05),
    "valley, noise 20 %": (lambda k: 0.2 + 1.6 * math.exp(-k / 1.5) + 0.002 * k, 0.2),
}
"""The loss without noise at evaluation k, and the standard deviation of the noise."""

RECORDED = """
fine-tuning with LoRA: .6911 .6909 .6957 .6931 .6749 .5918 .4782 .45 .43 .42 .41 .405 .402 .403 .404 .402 .403 .404 .405
regression of landmarks: 66 64 62 60 61 62 55 53 48 44 39 35 32 30
"""
KNOWN = {
    name: [float(loss) for loss in losses.split()]
    for name, losses in (line.split(": ") for line in RECORDED.strip().splitlines())
}
"""Recorded validation losses of two trainings that begin on a plateau."""


def window(losses: list[float], restart: bool) -> tuple[int, int, int, bool]:
    """Return the first and the last averaged evaluation, the number of restarts, and whether the start is doubted."""
    valley, restarts, detector = LossValley(restart=restart), 0, None
    for loss in losses:
        status = valley.observe(loss)
        restarts += detector is not None and valley.detector is not detector
        detector = valley.detector
        if status.should_stop:
            break
    (span,) = status.spans
    return span.first, span.last, restarts, bool(status.warning)


def simulated() -> dict[str, Any]:
    """Return per kind of curve: the share of bad updates, the length of the window, the restarts, the warnings."""
    generator, report = random.Random(1), {}
    for name, (clean_at, noise) in CURVES.items():
        clean = [clean_at(k) for k in range(LENGTH)]
        curves = [[loss * math.exp(generator.gauss(0, noise)) for loss in clean] for _ in range(N_CURVES)]
        report[name] = {
            "restart" if restart else "paper": summary([window(losses, restart) for losses in curves], clean)
            for restart in (False, True)
        }
    return report


def summary(windows: list[tuple[int, int, int, bool]], clean: list[float]) -> dict[str, float]:
    """Average what was found on curves of one kind."""
    bad = [fmean(loss > 1.5 * min(clean) for loss in clean[first - 1 : last]) for first, last, _, _ in windows]
    return {
        "share of bad updates": round(fmean(bad), 3),
        "evaluations averaged": round(fmean(last - first + 1 for first, last, _, _ in windows), 1),
        "restarts": round(fmean(restarts for _, _, restarts, _ in windows), 2),
        "share warned of": round(fmean(doubted for *_, doubted in windows), 3),
    }


def recorded() -> dict[str, Any]:
    """Return how many of the recorded trainings on PACS are warned of, and how many restart."""
    found = [(window(losses, False), window(losses, True)) for losses in pacs_losses()]
    return {
        "trainings on PACS": len(found),
        "warned of": sum(plain[3] for plain, _ in found),
        "restarted": sum(searching[2] > 0 for _, searching in found),
        "averaged evaluations": {
            name: {rule: window(losses, rule == "restart")[:2] for rule in ("paper", "restart")}
            for name, losses in KNOWN.items()
        },
    }


def pacs_losses() -> Iterator[list[float]]:
    """Yield the validation losses of every kept training of ERM on PACS."""
    for folder in ("pacs-resnet50/PACS/erm", "pacs-resnet50-three-way/constant/PACS/erm"):
        for run in sorted((RESULTS / folder).glob("*-*")):
            rows = map(json.loads, (run / "records.jsonl").read_text().splitlines())
            yield [row["value"] for row in rows if row["metric"] == "valley_loss"]


def draw(path: Path) -> None:
    """Draw the recorded false starts, with the windows of both rules below them."""
    rules = {"the paper's rule": False, "restart=True": True}
    with figure_style():
        figure = new_figure(7.2, 3)
        panels = figure.subplots(2, 2, sharex="col", height_ratios=(5, 1))
        for axes, strip, (name, losses) in zip(*panels, KNOWN.items(), strict=True):
            axes.plot(range(1, len(losses) + 1), losses, color=INK, marker="o", markersize=3)
            axes.set(title=name, ylabel="validation loss")
            axes.grid(axis="y")
            for row, restart in enumerate(rules.values()):
                first, last, *_ = window(losses, restart)
                strip.plot([first, last], [row, row], color=PALETTE[row], marker="o", linewidth=5)
            strip.set(
                xlabel="evaluation",
                xticks=range(0, len(losses) + 1, 5),
                yticks=range(len(rules)),
                yticklabels=list(rules),
                ylim=(1.6, -0.6),
            )
            strip.tick_params(left=False)
            strip.spines["left"].set_visible(False)
        save_figure(figure, path)


def main() -> None:
    """Measure, print, and write."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--figure", type=Path, help="also draw the recorded false starts to this file")
    arguments = parser.parse_args()
    report = {**header(), "curves": N_CURVES, "simulated": simulated(), "recorded": recorded()}
    print(json.dumps(report, indent=1))
    write(report, arguments.json)
    if arguments.figure:
        draw(arguments.figure)


if __name__ == "__main__":
    main()
