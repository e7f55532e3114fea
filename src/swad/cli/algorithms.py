"""`swad algorithms`: list the training algorithms, or show one."""

from __future__ import annotations

from typing import Annotated

import typer

from swad.cli._command import ShowGroup, add_command
from swad.cli._options import complete_algorithm

app = typer.Typer(cls=ShowGroup, help="List the training algorithms, or show one in detail.", no_args_is_help=False)


@app.callback(invoke_without_command=True, epilog="Example: swad algorithms show coral+sam")
def list_algorithms(context: typer.Context) -> None:
    """List the algorithms."""
    if context.invoked_subcommand is not None:
        return
    from swad.cli._console import make_console, plain_table
    from swad.testbed.algorithms import registry
    from swad.testbed.algorithms.domainbed import files

    table = plain_table("name", "year", "paper", "needs", no_wrap=("name", "year"))
    broken = []
    for name in registry.list_algorithms():
        try:
            algorithm = registry.get_algorithm(name)
        except registry.AlgorithmError as error:  # a file of the user's own; the other algorithms still work
            broken.append(f"{name}: {error}")
            continue
        credit, _, year = algorithm.paper.rstrip(".").rpartition(", ")
        table.add_row(name, year, credit, ", ".join(algorithm.all_needs()))
    console = make_console()
    console.print(table)
    for path in files.files():
        if names := files.algorithms(path):
            console.print(f"\n{path}, in DomainBed's form:", markup=False, highlight=False, soft_wrap=True)
            console.print(", ".join(f"{path.stem}:{name}" for name in names), markup=False, highlight=False)
    for line in broken:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(
        "\nDetails: swad algorithms show NAME. Append +sam or +sagm to combine one with SAM or SAGM: coral+sam.",
        highlight=False,
    )


def show(
    name: Annotated[
        str, typer.Argument(help="Name of an algorithm, NAME+sam or NAME+sagm.", autocompletion=complete_algorithm)
    ],
) -> None:
    """Show what an algorithm computes, whom to credit, and its hyperparameters with defaults and search ranges."""
    from dataclasses import fields
    from inspect import cleandoc, getmodule

    from swad.cli._console import make_console, plain_table
    from swad.testbed.algorithms import registry
    from swad.testbed.algorithms.hyperparameters import as_text

    algorithm = registry.get_algorithm(name)
    console = make_console()
    for part in registry.canonical_name(name).split("+"):
        # The docstring holds formulas: print it verbatim, without markup or rewrapping.
        cls = registry.get_algorithm(part)
        described = cls if cls.eager_only else getmodule(cls)  # that of another form stands beside others in its file
        console.print(cleandoc(described.__doc__ or ""), markup=False, highlight=False)
        console.print()
    console.print(f"Credit: {algorithm.paper or 'not stated'}", markup=False, highlight=False)
    console.print(f"Needs: {', '.join(algorithm.all_needs()) or 'nothing beyond images and labels'}", highlight=False)
    console.print(
        f"At least: batch_size {algorithm.min_per_domain}, source domains {algorithm.min_domains}\n", highlight=False
    )
    if algorithm.own_recipe is not None:
        console.print(f"With --recipe own: {algorithm.own_recipe}\n", markup=False, highlight=False)
    columns = ("--set", "default", "search range", "on low-resolution images", "meaning")
    table = plain_table(*columns, no_wrap=columns[:2])
    for field in fields(algorithm.Hyperparameters):
        search_range, low_res_range = field.metadata["range"], field.metadata["low_res"]
        exceptions = "".join(f"; {dataset}: {own_range}" for dataset, own_range in field.metadata["by_dataset"].items())
        table.add_row(
            field.name,
            as_text(field.default),
            f"{search_range}{exceptions}",
            "" if low_res_range == search_range else str(low_res_range),
            field.metadata["help"],
        )
    console.print(table)


add_command(app, show, "swad algorithms show coral+sam")
