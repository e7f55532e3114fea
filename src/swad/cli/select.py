"""`swad select`: the runs that a model selection chooses, as a file that others train with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from swad.cli._options import Folder, Select, SelectBy, TargetSplit

EXAMPLES = """
swad select runs
swad select sweep --select lodo -o selection.json
"""


def select(
    folder: Folder = Path("runs"),
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File of the selection (JSON). Default: FOLDER/selection.json."),
    ] = None,
    select: Select = "iid",
    select_by: SelectBy = None,
    target_split: TargetSplit = "in",
) -> None:
    """Write the hyperparameters, step and weights that represent each method to one small file.

    `swad train --hyperparameters-from` and `swad sweep run --hyperparameters-from` read it instead of searching again.
    """
    from swad.cli._console import make_console, print_first_rows
    from swad.cli._options import selected_results
    from swad.testbed.results.run_tables import selected_runs_table
    from swad.testbed.results.selection_file import make_selection, write_selection
    from swad.util.progress import progress_bar

    _, by_dataset = selected_results(folder, select, target_split, select_by=select_by)
    with progress_bar() as progress:
        selection = make_selection(by_dataset, folder, progress=progress)
    console = make_console()
    for results in by_dataset:
        print_first_rows(console, selected_runs_table(results))
    path = folder / "selection.json" if output is None else output
    write_selection(path, selection)
    print(f"wrote {path} with {len(selection.runs)} selected weights", file=sys.stdout, flush=True)
