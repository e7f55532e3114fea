"""What commands show: progress bars in a terminal, plain lines elsewhere, tables, and where things were written."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    pass


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
    from swad.results import summary, tables
    from swad.results.figures import training
    from swad.results.page import build
    from swad.results.runs import find_runs

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
        for warning in summary.warnings(found):
            console.print(f"[yellow]note[/]: {escape(warning)}", highlight=False)
    written = [build.write(folder, page_path, method=select, split=split)]
    if figure_folder is not None:
        written += training.save_all(found, figure_folder, formats=tuple(figure_formats.split(",")))
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
    """One row for each dataset."""
    from swad.data import benchmarks

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "images", "classes", "steps", "evaluate every", "domains"):
        table.add_column(column, justify="left" if column in ("name", "domains") else "right", no_wrap=column == "name")
    for name in benchmarks.names():
        one = benchmarks.get(name)
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
    from swad.algorithms.registry import get_algorithm, list_algorithms

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "year", "paper", "needs", "CUDA graph"):
        table.add_column(column, no_wrap=column == "name")
    for name in list_algorithms():
        one = get_algorithm(name)
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

    from swad.algorithms.registry import canonical_name, get_algorithm

    kind = get_algorithm(name)
    base, plus, _ = canonical_name(name).partition("+")
    console = _console()
    for part in (base, "sam") if plus else (base,):
        # The file's own words, formulas and all: not to be read as markup or wrapped anew.
        console.print(cleandoc(getmodule(get_algorithm(part)).__doc__ or ""), markup=False, highlight=False)
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
    """Everything known about one dataset."""
    from swad.data import benchmarks

    one = benchmarks.get(name)
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
        "license": one.license,
        "citation": one.citation,
        "homepage": one.homepage,
    }
    for label, value in rows.items():
        if value:
            table.add_row(label, value)
    Console().print(table)
