"""What commands show: progress bars in a terminal, plain lines elsewhere, tables, and where things were written."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from swad.config import RunConfig
    from swad.results import RunResult
    from swad.valley import Status

REFRESH = 0.2
"""Seconds between two looks at the loss: reading it waits for the device."""


class Watcher:
    """Follows one run and tells `show` what to draw: a bar's place, the loss, the valley's phase."""

    def __init__(self, name: str, show: Show) -> None:
        self.name, self._show = name, show
        self._text = ""
        self._loss = ""
        self._looked = 0.0

    def on_start(self, config: RunConfig, total: int, step: int) -> None:
        """Training begins, or goes on."""
        self._show.start(self.name, total, step)

    def on_note(self, text: str) -> None:
        """Say how the run is computed."""
        self._show.note(text)

    def on_progress(self, what: str, done: int, total: int | None) -> None:
        """Work before the first step."""
        self._show.prepare(what, done, total)

    def on_step(self, step: int, loss: Tensor) -> None:
        """Now and then, read the loss and move the bar."""
        now = time.monotonic()
        if now - self._looked >= REFRESH:
            self._looked = now
            self._loss = f"loss {float(loss):.3f}"
            self._show.move(self.name, step, f"{self._loss}  {self._text}")

    def on_evaluation(
        self, step: int, train_loss: float, losses: Mapping[str, float], statuses: Mapping[str, Status]
    ) -> None:
        """Say what the validation loss is and where the valley stands."""
        mean = sum(losses.values()) / len(losses)
        own = [status for name, status in statuses.items() if "@" not in name]
        # The one that says most: a valley, found or at least looked for.
        valley = max(own, key=lambda status: (status.threshold is not None, status.phase == "searching"), default=None)
        self._text = f"val {mean:.3f}" + (f"  {valley.phase}" if valley else "")
        self._show.evaluated(self.name, step, f"loss {train_loss:.3f}  {self._text}", valley.reason if valley else "")

    def on_end(self, result: RunResult) -> None:
        """Say what came out."""
        scores = "  ".join(f"{label} {100 * result.target_accuracy(label):.1f}" for label in result.scores)
        self._show.end(self.name, result.steps, scores)


class Show:
    """One line per event, for logs and pipes."""

    def __init__(self, n_runs: int) -> None:
        self._n_runs, self._done = n_runs, 0
        self._total: dict[str, int] = {}
        self._notes: set[str] = set()
        self._told: dict[str, int] = {}

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, name: str, total: int, step: int) -> None:
        """A run begins, or goes on."""
        self._total[name] = total
        self._told[name] = step * 10 // total
        print(
            f"{name}: {f'goes on after step {step} of' if step else ''} {total} steps".replace(":  ", ": "), flush=True
        )

    def note(self, text: str) -> None:
        """Something about how runs are computed; what holds for several is said once."""
        if text not in self._notes:
            self._notes.add(text)
            self._say(text)

    def _say(self, text: str) -> None:
        print(text, flush=True)

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Work that runs have in common, before their first step; one line for every tenth."""
        tenth = done * 10 // total if total else 0
        if tenth > self._told.get(what, 0):
            self._told[what] = tenth
            print(f"{what}: {done:,} of {total:,}", flush=True)

    def move(self, name: str, step: int, text: str) -> None:
        """A step was made."""

    def evaluated(self, name: str, step: int, text: str, reason: str) -> None:
        """An evaluation was made; one line for every tenth of the run."""
        tenth = step * 10 // self._total[name]
        if tenth > self._told[name]:
            self._told[name] = tenth
            print(f"{name}: step {step}/{self._total[name]}  {text.strip()}: {reason}", flush=True)

    def end(self, name: str, steps: int, text: str) -> None:
        """A run is done."""
        self._done += 1
        print(f"{name}: done ({self._done} of {self._n_runs}), target accuracy: {text}", flush=True)


class Bars(Show):
    """A bar for every run under way, and one for all of them."""

    def __init__(self, n_runs: int, console: Console) -> None:
        super().__init__(n_runs)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._all = self._progress.add_task("all runs", total=n_runs, text="") if n_runs > 1 else None

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, name: str, total: int, step: int) -> None:
        """A run begins, or goes on."""
        self._tasks[name] = self._progress.add_task(name, total=total, completed=step, text="")

    def _say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Work that runs have in common."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, text="")
        self._progress.update(self._tasks[what], completed=done, total=total)
        if done == total:
            self._progress.remove_task(self._tasks.pop(what))

    def move(self, name: str, step: int, text: str) -> None:
        """A step was made."""
        self._progress.update(self._tasks[name], completed=step, text=text)

    def evaluated(self, name: str, step: int, text: str, reason: str) -> None:
        """An evaluation was made."""
        self.move(name, step, text)

    def end(self, name: str, steps: int, text: str) -> None:
        """A run is done: its bar makes room for a line."""
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))
        self._progress.console.print(f"[bold]{name}[/] target accuracy  {text}")
        if self._all is not None:
            self._progress.advance(self._all)


def show_report(
    folder: Path,
    page_path: Path,
    select: str = "iid",
    form: str = "text",
    split: str = "in",
    figure_folder: Path | None = None,
    figure_formats: str = "svg,pdf",
    paper: str = "few",
) -> None:
    """Print the tables of a folder's runs, write the page, and say where it lies."""
    from swad.records import find_runs
    from swad.report import figures, page, runs, tables

    _require("format", form, ("text", "markdown", "latex", "csv"))
    _require("split", split, ("in", "out", "full", "test"))
    _require("paper", paper, ("few", "all", "none"))
    _require("select", select, tuple(tables.SELECTIONS))
    for one in figure_formats.split(","):
        _require("figure-formats", one, ("svg", "pdf", "png"))
    found = list(find_runs(folder))
    console = _console()
    for number, table in enumerate(tables.results(found, select, split=split, paper=paper)):  # type: ignore[arg-type]
        if form == "csv":
            print(table.csv(header=number == 0), end="")
        elif form == "text":
            console.print(table.rich())
            for note in table.notes:
                console.print(note, style="dim", highlight=False, markup=False)
            console.print()
        else:
            print({"markdown": table.markdown, "latex": table.latex}[form]() + "\n")
    if form == "text":
        console.print(tables.ranges(found).rich())
        for warning in runs.warnings(found):
            console.print(f"[yellow]note[/]: {escape(warning)}", highlight=False)
    written = [page.write(folder, page_path, method=select, split=split)]
    if figure_folder is not None:
        written += figures.save_all(found, figure_folder, formats=tuple(figure_formats.split(",")))
    more = f" and {len(written) - 1} figures in {figure_folder}" if written[1:] else ""
    # Unbroken, whatever the width: a path is there to be copied.
    print(f"wrote {written[0]}{more}", file=sys.stdout if form == "text" else sys.stderr, flush=True)


def _console() -> Console:
    """The terminal; or a file or pipe, where there is room for any table."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=160)


def _require(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"--{option} is one of {', '.join(choices)}; got {value!r}")


def show_datasets() -> None:
    """One row for each data set."""
    from swad import datasets

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "images", "classes", "steps", "evaluate every", "domains"):
        table.add_column(column, justify="left" if column in ("name", "domains") else "right", no_wrap=column == "name")
    for name in datasets.names():
        one = datasets.get(name)
        table.add_row(
            one.name,
            f"{one.total:,}" if one.total else "",
            str(one.n_classes or ""),
            f"{one.defaults.steps:,}",
            str(one.defaults.evaluate_every),
            ", ".join(one.domains) or "your folders",
        )
    console = Console()
    console.print(table)
    console.print("\nMore: swad datasets show NAME | check PATH | fetch NAME", highlight=False)


def show_algorithms() -> None:
    """One row for each algorithm."""
    from swad import algorithms

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "year", "paper", "needs", "CUDA graph"):
        table.add_column(column, no_wrap=column == "name")
    for name in algorithms.names():
        one = algorithms.get(name)
        credit, _, year = one.paper.rstrip(".").rpartition(", ")
        table.add_row(name, year, credit, ", ".join(one.needs), one.uncapturable or "yes")
    console = _console()
    console.print(table)
    more = "swad algorithms show NAME. NAME+sam puts SAM over another, as in coral+sam."
    console.print(f"\nMore: {more}", highlight=False)


def show_algorithm(name: str) -> None:
    """What an algorithm computes, and what it takes."""
    from dataclasses import fields
    from inspect import cleandoc, getmodule

    from swad import algorithms

    kind = algorithms.get(name)
    base, plus, _ = algorithms.canonical(name).partition("+")
    console = _console()
    for part in (base, "sam") if plus else (base,):
        # The file's own words, formulas and all: not to be read as markup or wrapped anew.
        console.print(cleandoc(getmodule(algorithms.get(part)).__doc__ or ""), markup=False, highlight=False)
        console.print()
    console.print(f"Credit: {kind.paper}", markup=False, highlight=False)
    console.print(f"Needs: {', '.join(kind.needs) or 'nothing beyond images and labels'}", highlight=False)
    console.print(f"At least: batch_size {kind.min_per_domain}, source domains {kind.min_domains}\n", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("--set", "default", "searched", "small images", "meaning"):
        table.add_column(column, no_wrap=column != "meaning")
    for one in fields(kind.Hyperparameters):
        search, small = one.metadata["range"], one.metadata["small"]
        elsewhere = "".join(f"; {dataset}: {own}" for dataset, own in one.metadata["only"].items())
        table.add_row(
            one.name,
            f"{one.default:g}",
            f"{search}{elsewhere}",
            "" if small == search else str(small),
            one.metadata["about"],
        )
    console.print(table)


def show_dataset(name: str) -> None:
    """Everything known about one data set."""
    from swad import datasets

    one = datasets.get(name)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    rows = {
        "name": one.name,
        "folder": f"ROOT/{one.folder}/<domain>/<class>/<image>" if one.folder else "",
        "domains": ", ".join(
            f"{domain} {one.counts[domain]:,}" if domain in one.counts else domain for domain in one.domains
        ),
        "classes": str(one.n_classes or ""),
        "training": f"{one.defaults.steps:,} steps, evaluation every {one.defaults.evaluate_every}, "
        f"r = {1 + one.defaults.tolerance_ratio:g}",
        "licence": one.licence,
        "citation": one.citation,
        "homepage": one.homepage,
    }
    for label, value in rows.items():
        if value:
            table.add_row(label, value)
    Console().print(table)
