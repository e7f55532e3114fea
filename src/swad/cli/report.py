"""`swad report`: the tables of a directory of runs, and their page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swad.cli._options import Select

if TYPE_CHECKING:
    from swad.results.method_results import DatasetResults

EXAMPLES = """
swad report runs
swad report runs --select lodo --format latex > table.tex
swad report runs --figures figures --figure-formats pdf
swad report runs --export-selection selection.json
"""


def report(
    folder: Annotated[Path, typer.Argument(help="Directory of runs, searched recursively.")] = Path("runs"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of the page. Default: FOLDER/report.html.")
    ] = None,
    select: Select = "iid",
    table_format: Annotated[str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")] = "text",
    split: Annotated[
        str,
        typer.Option(
            help="Split of the held-out domain that is reported: in (80 %), out (20 %), full (all of it) or test."
        ),
    ] = "in",
    figures: Annotated[
        Path | None, typer.Option(help="Also draw the validation curves of the selected runs into this directory.")
    ] = None,
    figure_formats: Annotated[str, typer.Option(help="One or several of svg, pdf, png.")] = "svg,pdf",
    paper: Annotated[
        str, typer.Option(help="Rows of the paper below ours: few (ERM, SWAD and the same methods), all or none.")
    ] = "few",
    allow_missing_targets: Annotated[
        bool, typer.Option("--allow-missing-targets", help="Show means over targets that lack a target, marked with *.")
    ] = False,
    export_selection: Annotated[
        Path | None,
        typer.Option(
            help="Also write the selected hyperparameters, steps and weights to this file (JSON), which "
            "`swad train --hyperparameters-from` reads."
        ),
    ] = None,
    log: Annotated[
        str,
        typer.Option(
            help="Also send the records of all runs to wandb, mlflow or tensorboard, except values that are there.",
            metavar="NAMES",
            show_default=False,
        ),
    ] = "",
    prune_weights: Annotated[
        bool,
        typer.Option(
            "--prune-weights", help="List the weights files of finished runs that --select does not select; see --yes."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the files that --prune-weights lists.")] = False,
) -> None:
    """Print the results of all runs in a directory next to the paper's, and write a page that works offline."""
    if yes and not prune_weights:
        raise ValueError("--yes confirms --prune-weights: give both, or neither")
    if log:
        _replay(folder, log)
    page = output or folder / "report.html"
    if not print_report(
        folder,
        page,
        select,
        table_format,
        split,
        figures,
        figure_formats,
        paper,
        allow_missing_targets,
        export_selection,
        prune_weights,
        yes,
    ):
        raise typer.Exit(1)


def print_report(
    folder: Path,
    page_path: Path,
    select: str = "iid",
    table_format: str = "text",
    split: str = "in",
    figure_folder: Path | None = None,
    figure_formats: str = "svg,pdf",
    paper: str = "few",
    allow_missing_targets: bool = False,
    export_selection: Path | None = None,
    prune_weights: bool = False,
    yes: bool = False,
) -> bool:
    """Print the tables of a directory's runs, write the page, and print its path.

    Returns False if the page could not be written because a package is missing.
    """
    from rich.text import Text

    from swad.cli._console import make_console
    from swad.results.diagnostics import find_problems
    from swad.results.figures.training import save_valley_figures
    from swad.results.method_results import collect_results
    from swad.results.page.build import write_page
    from swad.results.run_tables import SELECTIONS, accuracy_table, ranges_table, selected_runs_table
    from swad.results.runs import find_runs

    _require_choice("format", table_format, ("text", "markdown", "latex", "csv"))
    _require_choice("split", split, ("in", "out", "full", "test"))
    _require_choice("paper", paper, ("few", "all", "none"))
    _require_choice("select", select, tuple(SELECTIONS))
    for figure_format in figure_formats.split(","):
        _require_choice("figure-formats", figure_format, ("svg", "pdf", "png"))
    runs = find_runs(folder, warn=False)  # the tables name the skipped runs
    console = make_console()
    by_dataset = collect_results(runs, select, split)
    for number, results in enumerate(by_dataset):
        table = accuracy_table(results, paper, allow_missing_targets)  # type: ignore[arg-type]
        if table_format == "csv":
            print(table.csv(header=number == 0), end="")
            print(*table.notes, sep="\n", file=sys.stderr)
        elif table_format == "text":
            console.print(table.rich())
            for note in table.notes:
                console.print(note, style="dim", highlight=False, markup=False)
            console.print()
        else:
            print({"markdown": table.markdown, "latex": table.latex}[table_format]() + "\n")
    if table_format == "text":
        for results in by_dataset:
            console.print(selected_runs_table(results).rich())
        console.print(ranges_table(runs).rich())
        for problem in find_problems(runs):
            console.print(Text.assemble(("warning", "yellow"), f": {problem}"))
    if export_selection is not None:
        _export_selection(by_dataset, folder, export_selection)
    if prune_weights:
        _prune_weights(by_dataset, folder, yes)
    try:
        written = [write_page(runs, page_path, method=select, split=split, allow_missing_targets=allow_missing_targets)]
        if figure_folder is not None:
            written += save_valley_figures(by_dataset, figure_folder, formats=tuple(figure_formats.split(",")))
    except ImportError as error:  # without the extra, training and the table still work
        print(f"The page was not written: {error}", file=sys.stderr, flush=True)
        return False
    figures = f" and {len(written) - 1} figures in {figure_folder}" if written[1:] else ""
    # On one line whatever the width, so that the path can be copied; not into a table that is piped to a file.
    print(f"wrote {written[0]}{figures}", file=sys.stdout if table_format == "text" else sys.stderr, flush=True)
    return True


def _export_selection(by_dataset: Sequence[DatasetResults], folder: Path, path: Path) -> None:
    from swad.results.selection_file import make_selection, write_selection
    from swad.util.progress import progress_bar

    with progress_bar() as progress:
        selection = make_selection(by_dataset, folder, progress=progress)
    write_selection(path, selection)
    print(f"wrote {path} with {len(selection.runs)} selected runs", file=sys.stderr, flush=True)


def _prune_weights(by_dataset: Sequence[DatasetResults], folder: Path, remove: bool) -> None:
    """List the weights of runs that were not selected, and remove them if the user confirms."""
    from swad.results.unselected_weights import remove_weights, unselected_weights

    files = unselected_weights(by_dataset)
    size = sum(path.stat().st_size for path in files)
    for path in files:
        print(f"{'removing' if remove else 'would remove'} {path.relative_to(folder)}", file=sys.stderr)
    if remove:
        remove_weights(files)
    state = "removed" if remove else "--prune-weights --yes removes"
    print(f"{state} {len(files)} weights files of runs that were not selected, {size / 1e9:.3f} GB", file=sys.stderr)


def _replay(folder: Path, names: str) -> None:
    """Send the records of all runs to trackers."""
    from swad.cli._options import words
    from swad.results.runs import find_runs
    from swad.results.trackers.base import name_problems
    from swad.results.trackers.tracking import replay
    from swad.util.progress import progress_report

    trackers = list(dict.fromkeys(words(names)))
    if problems := name_problems(trackers):
        raise ValueError("; ".join(problems))
    runs = find_runs(folder, warn=False)
    with progress_report() as progress:
        problems = replay(runs, trackers, progress)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(1)


def _require_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"--{option} must be one of {', '.join(choices)}; got {value!r}")
