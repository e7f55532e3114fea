"""`swad prune`: remove weights that no result uses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli._options import Folder, Select, SelectBy
from swad.util.names import counted

EXAMPLES = """
swad prune sweep
swad prune sweep --select lodo --yes
"""


def prune(
    folder: Folder = Path("runs"),
    select: Select = "iid",
    select_by: SelectBy = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the files that are listed.")] = False,
) -> None:
    """List the weights of finished runs that the model selection does not choose; with --yes, remove them.

    Records and settings stay, so every table is the same as before.
    """
    from swad.cli._options import selected_results
    from swad.testbed.results.unselected_weights import remove_weights, unselected_weights

    _, by_dataset = selected_results(folder, select, select_by=select_by)
    files = unselected_weights(by_dataset)
    size = sum(path.stat().st_size for path in files)
    for path in files:
        print(f"{'removing' if yes else 'would remove'} {path.relative_to(folder)}")
    if yes:
        remove_weights(files)
    state = "removed" if yes else "--yes removes" if files else "there are"
    print(f"{state} {counted(len(files), 'weights file')} of runs that {select} does not select, {size / 1e9:.3f} GB")
