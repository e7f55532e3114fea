"""Printing the results of checking and downloading datasets."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swad.cli._console import make_console
from swad.data.download import DownloadResult
from swad.data.verify import CheckResult
from swad.util.names import counted


def print_check(result: CheckResult, console: Console | None = None, max_problems: int = 20) -> None:
    """Print a table of image counts, then the notes and the problems."""
    console = console or make_console()
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
    problems = [*result.problems, *(f"{bad.path}: {bad.reason}" for bad in result.bad)]
    for problem in problems[:max_problems]:
        console.print(f"problem: {problem}", style="red", markup=False, soft_wrap=True)
    if len(problems) > max_problems:
        console.print(f"problem: and {len(problems) - max_problems:,} more", style="red")
    verdict = "no problems" if result.ok else counted(len(problems), "problem")
    console.print(
        f"{result.images:,} images, {result.classes} classes, {result.decoded:,} decoded in {result.seconds:.1f} s: "
        f"{verdict}",
        style="green" if result.ok else "red",
        soft_wrap=True,
    )


def print_download(result: DownloadResult, console: Console | None = None) -> None:
    """Print the downloaded files, the image counts, and the folder of the dataset."""
    console = console or make_console()
    for file in result.files:
        checksum = "verified" if file.verified else "recorded (no checksum is published)"
        console.print(
            f"{file.filename}  {file.size:,} bytes  sha256 {file.sha256[:16]}… {checksum}", soft_wrap=True, markup=False
        )
    for note in result.notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False)
    print_check(result.check, console)
    console.print(str(result.path), soft_wrap=True, markup=False)
