"""`swad algorithms`, `datasets` and `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli.options import Output

datasets_app = typer.Typer(help="The datasets: list them, check a copy, download one.", no_args_is_help=False)
algorithms_app = typer.Typer(help="The algorithms: list them, show what one computes and takes.", no_args_is_help=False)


@algorithms_app.callback(invoke_without_command=True)
def list_algorithms(context: typer.Context) -> None:
    """List the algorithms."""
    if context.invoked_subcommand is None:
        from swad.cli._console import show_algorithms

        show_algorithms()


@algorithms_app.command("show")
def show_algorithm(name: Annotated[str, typer.Argument(help="An algorithm's name, or NAME+sam.")]) -> None:
    """What one algorithm computes, whom to credit, and every hyperparameter with its default and range."""
    from swad.cli._console import show_algorithm

    show_algorithm(name)


@datasets_app.callback(invoke_without_command=True)
def list_datasets(context: typer.Context) -> None:
    """List the datasets."""
    if context.invoked_subcommand is None:
        from swad.cli._console import show_datasets

        show_datasets()


@datasets_app.command("show")
def show_dataset(name: Annotated[str, typer.Argument(help="A dataset's name.")]) -> None:
    """Everything known about one dataset: counts, license, citation, where it comes from."""
    from swad.cli._console import show_dataset

    show_dataset(name)


@datasets_app.command("check")
def check_dataset(
    path: Annotated[Path, typer.Argument(help="The dataset's folder.")],
    name: Annotated[str | None, typer.Option(help="Its name, where the folders do not tell.")] = None,
    decode: Annotated[bool, typer.Option(help="Decode every image.")] = True,
) -> None:
    """Count the images of a copy, decode every one, and name what is wrong."""
    from swad.data import benchmarks

    with benchmarks.progress_bar() as progress:
        result = benchmarks.check(path, name, decode=decode, progress=progress)
    benchmarks.show_check(result)
    if not result.ok:
        raise typer.Exit(1)


@datasets_app.command("fetch")
def fetch_dataset(
    name: Annotated[str, typer.Argument(help="A dataset's name.")],
    output: Output = Path("data"),
) -> None:
    """Download a dataset: goes on after a break, checks sums, unpacks safely."""
    from swad.data import benchmarks

    with benchmarks.progress_bar() as progress:
        result = benchmarks.fetch(name, output, progress=progress)
    benchmarks.show_fetched(result)


def doctor() -> None:
    """What this machine has and can do."""
    from swad.cli.doctor import examine

    examine()
