"""`swad report`: the tables of a directory of runs, and their page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swad.cli import _options as parse
from swad.cli._options import FigureFormats, Folder, Metric, Select, SelectBy, TargetSplit
from swad.util.names import counted, file_stem, require_choice

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image
    from rich.console import Console

    from swad.testbed.results.run_data import RunData
    from swad.testbed.results.runs import RunList
    from swad.testbed.results.selection import DatasetResults
    from swad.testbed.results.tables import Table

FORMATS = ["svg,pdf"]

EXAMPLES = """
swad report runs
swad report runs --metric auc
swad report runs --select lodo --format latex > table.tex
swad report runs --figures figures --figure-formats pdf
swad report runs --baseline "SWA" --comparisons comparisons.csv
"""


def report(
    folder: Folder = Path("runs"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of the page. Default: FOLDER/report.html.")
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Print the tables and write no page.")] = False,
    no_pictures: Annotated[
        bool, typer.Option("--no-pictures", help="Name the mistakes of the shown method without their images.")
    ] = False,
    select: Select = "iid",
    select_by: SelectBy = None,
    metric: Metric = "accuracy",
    table_format: Annotated[str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")] = "text",
    target_split: TargetSplit = "in",
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Also draw the validation curves of the selected runs and the ranks of methods into this directory."
        ),
    ] = None,
    figure_formats: FigureFormats = FORMATS,
    paper: Annotated[
        str, typer.Option(help="Rows of the paper below ours: few (ERM, SWAD and the same methods), all or none.")
    ] = "few",
    allow_missing_targets: Annotated[
        bool, typer.Option("--allow-missing-targets", help="Show means over targets that lack a target, marked with *.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(help="Method that the others are compared with, as the table names it. Default: ERM (best)."),
    ] = None,
    compare_over: Annotated[
        str,
        typer.Option(
            help="Unit of the paired test: runs (a difference holds for another training on these targets), trials "
            "(the same, with one value for each trial) or targets (it holds for other targets); auto: trials if there "
            "are enough, else runs."
        ),
    ] = "auto",
    comparisons: Annotated[
        Path | None, typer.Option(help="Also write the comparisons to this CSV file, in full precision.")
    ] = None,
) -> None:
    """Print the results of all runs in a directory next to the paper's, and write a page that works offline."""
    from swad.cli._console import make_console, short_warnings
    from swad.testbed.results.accuracy_table import accuracy_table
    from swad.testbed.results.compare import UNIT_CHOICES
    from swad.testbed.results.comparisons import not_compared
    from swad.testbed.results.diagnostics import find_problems
    from swad.testbed.results.unit_tables import comparisons_tables

    if no_page and output is not None:
        raise ValueError("--output names the page, but --no-page writes none: give one of them")
    require_choice("--format", table_format, ("text", "markdown", "latex", "csv"))
    require_choice("--paper", paper, ("few", "all", "none"))
    formats = parse.figure_formats(figure_formats)
    require_choice("--compare-over", compare_over, UNIT_CHOICES)
    console = make_console()
    runs, by_dataset = parse.selected_results(folder, select, target_split, metric, select_by)
    compared = _compare(by_dataset, baseline, compare_over, comparisons)
    tables = [accuracy_table(results, paper, allow_missing_targets) for results in by_dataset]  # type: ignore[arg-type]
    # One trial allows no test, which the notes of the accuracies say. --comparisons writes the CSV.
    if compared is not None and table_format != "csv" and (baseline is not None or compared["p"].notna().any()):
        tables += comparisons_tables(compared, not_compared(by_dataset, compared, compared["baseline"].iloc[0]))
    _print_tables(console, tables, table_format)
    if table_format == "csv" and baseline is not None and comparisons is None:
        print("--format csv prints accuracies alone; --comparisons FILE writes the comparisons", file=sys.stderr)
    problems = find_problems(runs)
    if table_format == "text":
        _print_runs(console, runs, by_dataset, problems)
    written: list[str] = []
    try:
        with short_warnings():
            if not no_page:
                # Imported here because a table needs neither page nor figures.
                from swad.testbed.measurements import stored_reports
                from swad.testbed.results.page.build import write_page

                reports, damaged = stored_reports(runs)
                page = write_page(
                    runs,
                    output or folder / "report.html",
                    method=select,
                    split=target_split,
                    allow_missing_targets=allow_missing_targets,
                    baseline=baseline,
                    unit=compare_over,
                    results=by_dataset,
                    measured=reports,
                    problems=[*problems, *damaged],
                    find_picture=None if no_pictures else _find_picture,
                    follow_link=output is not None,
                )
                written.append(str(page))
            if figures is not None:
                from swad.testbed.results.figures.confusion import confusion_figure
                from swad.testbed.results.figures.critical_difference import critical_difference_figure
                from swad.testbed.results.figures.style import save_figures
                from swad.testbed.results.figures.training import save_valley_figures
                from swad.testbed.results.method_ranks import RANKS_NEED, rank_results
                from swad.testbed.results.mistakes import shown_predictions

                drawn = save_valley_figures(by_dataset, figures, formats)
                for results in by_dataset:
                    if (shown := shown_predictions(results)) is not None:
                        stem = figures / file_stem([f"confusion-{results.dataset}"])
                        drawn += save_figures(confusion_figure(shown), stem, formats)
                if (ranked := rank_results(by_dataset)) is not None:
                    diagram = critical_difference_figure(ranked)
                    drawn += save_figures(diagram, figures / "critical-difference", formats)
                else:
                    print(f"No ranks of methods were drawn: {RANKS_NEED}", file=sys.stderr, flush=True)
                written.append(f"{counted(len(drawn), 'file')} in {figures}")
    except ImportError as error:  # without the extra, training and the table still work
        print(f"The page was not written: {error}", file=sys.stderr, flush=True)
        raise typer.Exit(1) from None
    if written:
        # On one line whatever the width, so that the path can be copied; not into a table that is piped to a file.
        print(f"wrote {' and '.join(written)}", file=sys.stdout if table_format == "text" else sys.stderr, flush=True)


def report_trained(folder: Path, page: Path | None = None, select: str = "iid") -> None:
    """Report on runs that were just trained, whose training has succeeded even if the page needs another package."""
    with suppress(typer.Exit):
        report(folder, page, select=select)


def _find_picture(run: RunData, row: Any) -> Image | None:
    from swad.testbed.data.pictures import find_picture

    data_dir = run.config.get("data_dir")
    return find_picture(str(run.config.get("dataset")), data_dir, row.domain, row.image, row.label, row.path)


def _compare(
    by_dataset: Sequence[DatasetResults], baseline: str | None, unit: str, path: Path | None
) -> pd.DataFrame | None:
    """Compare all methods with the baseline, and write the comparisons to a CSV file if asked to; None without any."""
    from swad.testbed.results.comparisons import compare_over_datasets, default_baseline
    from swad.testbed.results.unit_tables import comparisons_csv
    from swad.util.files import write_text

    baseline = baseline or default_baseline(by_dataset)
    if baseline is None:
        return None
    try:
        comparisons = compare_over_datasets(by_dataset, baseline, unit=unit)
    except ImportError as error:  # without the extra, training and the accuracies still work
        print(f"Methods were not compared: {error}", file=sys.stderr, flush=True)
        return None
    if path is not None:
        write_text(path, comparisons_csv(comparisons), follow_link=True)
        print(f"wrote {path} with {len(comparisons)} comparisons", file=sys.stderr, flush=True)
    return comparisons if len(comparisons) else None


def _print_tables(console: Console, tables: Sequence[Table], table_format: str) -> None:
    from swad.cli._console import print_table

    for number, table in enumerate(tables):
        if table_format == "csv":
            print(table.csv(header=number == 0), end="")
            print(*table.notes, sep="\n", file=sys.stderr)
        elif table_format == "text":
            print_table(console, table)
            console.print()
        else:
            print({"markdown": table.markdown, "latex": table.latex}[table_format]() + "\n")


def _print_runs(console: Console, runs: RunList, by_dataset: Sequence[DatasetResults], problems: Sequence[str]) -> None:
    """Print which runs were selected, what they averaged, and what is wrong with them."""
    from rich.text import Text

    from swad.cli._console import MAX_ROWS, print_first_rows
    from swad.testbed.results.mistakes import class_table, shown_predictions
    from swad.testbed.results.run_tables import ranges_table, selected_runs_table

    tables = [selected_runs_table(results) for results in by_dataset]
    selected = {number for results in by_dataset for number in results.results.run}
    # The ranges of all runs of a search would fill screens.
    tables.append(ranges_table(runs, None if len(runs) <= MAX_ROWS else selected))
    tables += [class_table(shown) for results in by_dataset if (shown := shown_predictions(results)) is not None]
    for table in tables:
        if table.rows:
            print_first_rows(console, table)
    for problem in problems[:MAX_ROWS]:
        console.print(Text.assemble(("warning", "yellow"), f": {problem}"))
    if problems[MAX_ROWS:]:
        console.print(f"and {len(problems) - MAX_ROWS:,} more warnings, which the page lists")
