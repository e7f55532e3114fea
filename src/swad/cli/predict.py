"""`swad predict`: classify image files with the weights of a run."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from swad.cli._options import Device, Workers
from swad.util.names import counted, require_choice

if TYPE_CHECKING:
    from swad.testbed.deploy.predict import Prediction, Summary

EXAMPLES = """
swad predict runs/my_images/erm/none-0 photo.jpg
swad predict runs/my_images/erm/none-0 new_images -o predictions.csv
swad predict runs/my_images/erm/none-0 list.csv --weights swad --format json > predictions.json
"""

RunOrFile = Annotated[
    Path, typer.Argument(metavar="RUN", help="Directory of a finished run, or a weights file of one.")
]
WeightsOfRun = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Weights of the run, e.g. swad. Default: those with the lowest loss on its validation images.",
    ),
]


def predict(
    run: RunOrFile,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES",
            help="Folders, image files, or CSV files with a column path and, optionally, domain and label. Folders "
            "DOMAIN/CLASS give both.",
        ),
    ],
    weights: WeightsOfRun = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the predictions to this file, .csv or .json.")
    ] = None,
    output_format: Annotated[
        str, typer.Option("--format", "-f", help="What is printed: table, csv or json.")
    ] = "table",
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Print the most probable class of every image, and a summary by domain. Damaged images are named and skipped."""
    from itertools import islice

    from swad.cli._console import MAX_ROWS, make_console, plain_table
    from swad.testbed.deploy.choose import find_weights
    from swad.testbed.deploy.images import find_images
    from swad.testbed.deploy.predict import Predictions
    from swad.testbed.measure.saved_run import find_device
    from swad.testbed.training.export import eval_group_size, load_predictor, read_card
    from swad.util.progress import progress_report

    require_choice("--format", output_format, ("table", "csv", "json"))
    file_format = "" if output is None else output.suffix.removeprefix(".")
    if output is not None:
        require_choice("the suffix of --output", file_format, ("csv", "json"))
    where = find_device(device)
    file, candidates = find_weights(run, weights)
    predictor, card = load_predictor(file), read_card(file)
    group_size = eval_group_size(card)
    found = find_images(images, predictor.class_names)
    notes = [f"{file.name}: the lowest validation loss of {counted(len(candidates), 'set')} of weights"] * bool(
        candidates
    )
    if group_size:
        notes.append(f"{card['algorithm']} looks at {group_size} images of a domain together, in random order here")
    for note in notes:
        _note(note)
    with progress_report() as progress:
        predictions = Predictions(
            predictor, found, where, group_size=group_size, workers=workers, skip=_skip, progress=progress
        )
        rows: Iterator[Prediction] = iter(predictions)
        if output is not None:
            rows = _written(rows, output, file_format)
        if output_format != "table":
            rows = _streamed(rows, sys.stdout, output_format)
        shown = list(islice(rows, MAX_ROWS))
        n = len(shown) + sum(1 for _ in rows)
    if predictions.turned:
        _note(f"{counted(predictions.turned, 'image')} with an EXIF orientation: it is ignored, as in training")
    if output_format == "table":
        console = make_console()
        table = plain_table("Image", "Class", "Probability", "Label", right=("Probability",))
        for row in shown:
            table.add_row(row.path, row.predicted, f"{row.probability:.3f}", row.label)
        console.print(table, highlight=False)
        if n > len(shown):
            print(f"and {n - len(shown):,} more; --output predictions.csv writes all")
        if len(predictions.by_domain) > 1 or any(counts.labeled for counts in predictions.by_domain.values()):
            console.print()
            console.print(_summary(predictions.by_domain), highlight=False)
    if output is not None:
        print(f"wrote {output}", file=sys.stdout if output_format == "table" else sys.stderr)


def _summary(by_domain: dict[str, Summary]) -> object:
    from swad.cli._console import plain_table

    right = ("Images", "Mean probability", "Accuracy, %")
    table = plain_table("Domain", *right, right=right)
    for domain, counts in by_domain.items():
        accuracy = f"{100 * counts.correct / counts.labeled:.1f}" if counts.labeled else "–"
        table.add_row(domain, f"{counts.images:,}", f"{counts.probability / counts.images:.3f}", accuracy)
    return table


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def _skip(reason: str) -> None:
    print(f"warning: skipped an image: {reason}", file=sys.stderr, flush=True)


def _written(rows: Iterable[Prediction], output: Path, file_format: str) -> Iterator[Prediction]:
    """Write predictions to a file while they pass; it gets its name when all of them are written."""
    from swad.util.files import atomic_write

    with atomic_write(output, follow_link=True) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        yield from _streamed(rows, file, file_format)


def _streamed(rows: Iterable[Prediction], file: TextIO, file_format: str) -> Iterator[Prediction]:
    """Write predictions, each as a line, while they pass: as CSV or as one JSON list."""
    from swad.testbed.deploy.predict import Prediction

    if file_format == "csv":
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Prediction._fields)
        for row in rows:
            writer.writerow([*row[:-1], f"{row.probability:.6g}"])
            yield row
        return
    before = "[\n"
    for row in rows:
        file.write(before + json.dumps(row._asdict(), ensure_ascii=False))
        before = ",\n"
        yield row
    file.write("\n]\n" if before == ",\n" else "[]\n")
