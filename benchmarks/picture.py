"""Draw what SWAD does in one recorded training: the loss that decides, and the accuracy on the domain held out.

python benchmarks/picture.py docs/swad.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from swad.testbed.results.figures.style import FAINT, INK, PALETTE, RANGE, figure_style, new_figure, save_figure

RUN = Path(__file__).parent / "results" / "pacs-resnet50" / "PACS" / "erm" / "art_painting-0"


def draw(run: Path, path: Path) -> None:
    """Draw the validation loss of the sources above the accuracy of live weights and of SWAD on the target."""
    rows = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    live = {"metric": "accuracy", "domain": run.name.rsplit("-", 1)[0], "split": "in", "average": None}
    losses = {row["step"]: row["value"] for row in rows if row["metric"] == "valley_loss"}
    accuracies = {
        row["step"]: 100 * row["value"] for row in rows if live.items() <= row.items() and row["step"] in losses
    }
    found = {row["metric"]: row["value"] for row in rows if row.get("average") == "swad" and row["domain"] is None}
    averaged = next(100 * row["value"] for row in rows if {**live, "average": "swad"}.items() <= row.items())
    with figure_style():
        figure = new_figure(6.4, 4)
        above, below = figure.subplots(2, 1, sharex=True)
        for axes in (above, below):
            axes.axvspan(found["start_step"], found["end_step"], color=RANGE, alpha=0.1, linewidth=0)
            axes.grid(axis="y")
        above.plot(*zip(*sorted(losses.items()), strict=True), color=INK)
        above.axhline(found["threshold"], color=FAINT, linestyle="--")
        above.annotate(
            "threshold", (5001, found["threshold"]), (4, 0), textcoords="offset points", color=FAINT, va="center"
        )
        above.set(ylabel="validation loss", ylim=(0, 0.6))
        above.text(found["start_step"] + 60, 0.54, "every step from here on is averaged", color=RANGE, va="center")
        below.plot(*zip(*sorted(accuracies.items()), strict=True), color=INK, label="live weights")
        below.axhline(averaged, color=PALETTE[1], linewidth=2, label="SWAD")
        below.text(4950, averaged + 0.8, "SWAD, after training", color=PALETTE[1], ha="right", va="bottom")
        below.text(4950, 72.5, "the weights of single steps", color=INK, ha="right", va="top")
        below.set(xlabel="step", ylabel="accuracy on unseen\ndomain, %", ylim=(65, 92), xlim=(0, 5001))
        save_figure(figure, path)


def main() -> None:
    """Draw the recorded training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the figure")
    draw(RUN, parser.parse_args().path)


if __name__ == "__main__":
    main()
