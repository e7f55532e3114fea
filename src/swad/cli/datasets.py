"""`swad datasets`: list the datasets, show one, check a copy, download one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swad.cli._command import ShowGroup, add_command
from swad.cli._options import Output, complete_dataset
from swad.util.names import counted

if TYPE_CHECKING:
    from swad.testbed.data.benchmark import Benchmark
    from swad.testbed.data.download import DownloadResult
    from swad.testbed.data.verify import CheckResult

app = typer.Typer(
    cls=ShowGroup, help="List the datasets, show one, check a copy, or download one.", no_args_is_help=False
)


@app.callback(invoke_without_command=True, epilog="Example: swad datasets show PACS")
def list_datasets(context: typer.Context) -> None:
    """List the datasets."""
    if context.invoked_subcommand is not None:
        return
    from rich.text import Text

    from swad.cli._console import make_console, plain_table
    from swad.testbed.data import benchmarks
    from swad.util.images import DataError

    numbers = ("images", "classes", "steps", "evaluate every")
    table = plain_table("name", *numbers, "domains", right=numbers, no_wrap=("name",))
    broken = []
    for name in benchmarks.names():
        try:
            benchmark = benchmarks.get(name)
        except DataError as error:  # a file of the user's own; the other datasets still work
            broken.append(f"{name}: {error}")
            continue
        table.add_row(
            Text(benchmark.name),
            f"{benchmark.total:,}" if benchmark.total else "",
            str(benchmark.n_classes or ""),
            f"{benchmark.defaults.steps:,}",
            str(benchmark.defaults.evaluate_every),
            Text(", ".join(benchmark.domains) or "your directories"),
        )
    console = make_console()
    console.print(table)
    for line in broken:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(
        "\nMore: swad datasets show NAME, swad datasets check PATH, swad datasets download NAME", highlight=False
    )


def show(name: Annotated[str, typer.Argument(help="Name of a dataset.", autocompletion=complete_dataset)]) -> None:
    """Show the counts, license, citation and source of a dataset."""
    from rich.table import Table
    from rich.text import Text

    from swad.cli._console import make_console
    from swad.testbed.data import benchmarks
    from swad.testbed.data.benchmark import addresses

    benchmark = benchmarks.get(name)
    counts, defaults = benchmark.counts, benchmark.defaults
    rows = {
        "name": benchmark.name,
        "files": _files(benchmark),
        "domains": ", ".join(
            f"{domain} {counts[domain]:,}" if domain in counts else domain for domain in benchmark.domains
        ),
        "classes": str(benchmark.n_classes or ""),
        "training": f"{defaults.steps:,} steps, evaluation every {defaults.evaluate_every}, "
        f"r = {1 + defaults.tolerance_ratio:g}",
        "license": benchmark.license,
        "citation": benchmark.citation,
        "homepage": benchmark.homepage,
        "sources": "\n".join(", ".join(addresses(source)) for source in benchmark.sources),
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for label, value in rows.items():
        if value:
            table.add_row(label, Text(value))
    make_console().print(table)


def _files(benchmark: Benchmark) -> str:
    """Describe where the files of a dataset are; "" for those that only their own function can read."""
    folder = "/".join(filter(None, ("ROOT", benchmark.folder)))
    if benchmark.layout == "idx":
        return f"{folder}/<the four idx files of MNIST>"
    return "" if benchmark.read is not None else f"{folder}/<domain>/<class>/<image>"


def check(
    path: Annotated[Path, typer.Argument(help="Directory of the dataset, or whatever else --data takes.")],
    name: Annotated[str | None, typer.Option(help="Name of the dataset. Default: that of the directory.")] = None,
    decode: Annotated[bool, typer.Option(help="Decode every image.")] = True,
) -> None:
    """Count the images of a copy, decode every one, and list the problems."""
    from swad.testbed.data import verify
    from swad.util.progress import progress_bar

    with progress_bar() as progress:
        result = verify.check(path, name, decode=decode, progress=progress)
    print_check(result)
    if not result.ok:
        raise typer.Exit(1)


def download(
    name: Annotated[str, typer.Argument(help="Name of a dataset.", autocompletion=complete_dataset)],
    output: Output = Path("data"),
) -> None:
    """Download a dataset, unpack it and count its images. An interrupted download resumes.

    Its sources are tried in order until one has all images; `swad datasets show NAME` lists them.

    Checksums are published for the files of MNIST and for one list of DomainNet, and verified. Those of other files
    are recorded and compared at the next download.
    """
    from swad.testbed.data.download import download_dataset
    from swad.util.progress import progress_bar

    with progress_bar() as progress:
        result = download_dataset(name, output, progress=progress)
    print_download(result)


MAX_PROBLEMS = 20
"""Problems that are printed before the rest is counted."""


def print_check(result: CheckResult) -> None:
    """Print a table of image counts, then the notes and the problems."""
    from rich.table import Table
    from rich.text import Text

    from swad.cli._console import make_console

    console = make_console()
    console.print(f"{result.name} at {result.path}", style="bold", markup=False, soft_wrap=True)
    table = Table()
    for heading in ("domain", "images", "expected", "classes"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for domain in result.domains:
        wrong = domain.expected is not None and domain.found != domain.expected
        expected = "any" if domain.expected is None else f"{domain.expected:,}"
        table.add_row(
            Text(domain.name), f"{domain.found:,}", expected, str(domain.classes), style="red" if wrong else ""
        )
    console.print(table)
    for note in result.notes:
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    problems = [*result.problems, *(bad.reason for bad in result.bad)]
    for problem in problems[:MAX_PROBLEMS]:
        console.print(f"problem: {problem}", style="red", markup=False, soft_wrap=True)
    if len(problems) > MAX_PROBLEMS:
        console.print(f"problem: and {len(problems) - MAX_PROBLEMS:,} more", style="red")
    verdict = "no problems" if result.ok else counted(len(problems), "problem")
    console.print(
        f"{result.images:,} images, {result.classes} classes, {result.decoded:,} decoded in {result.seconds:.1f} s: "
        f"{verdict}",
        style="green" if result.ok else "red",
        soft_wrap=True,
    )


def print_download(result: DownloadResult) -> None:
    """Print the downloaded files, the image counts, and the folder of the dataset."""
    from swad.cli._console import make_console

    console = make_console()
    for file in result.files:
        checksum = "verified" if file.verified else "recorded (no checksum is published)"
        console.print(
            f"{file.filename}  {file.size:,} bytes  sha256 {file.sha256[:16]}… {checksum}", soft_wrap=True, markup=False
        )
    for note in result.notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False)
    print_check(result.check)
    console.print(str(result.path), soft_wrap=True, markup=False)


add_command(app, show, "swad datasets show PACS")
add_command(app, check, "swad datasets check data/PACS")
add_command(app, download, "swad datasets download VLCS --output data")
