"""`swad predict`: classify image files with the weights of a run."""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swad.cli._options import Device, Workers
from swad.util.names import counted, require_choice

if TYPE_CHECKING:
    from swad.testbed.deploy.predict import Prediction

EXAMPLES = """
swad predict runs/my_images/erm/none-0 photo.jpg
swad predict runs/my_images/erm/none-0 new_images -o predictions.csv
swad predict runs/my_images/erm/none-0 list.csv -o predictions.json --weights swad
"""

RunOrFile = Annotated[
    Path, typer.Argument(metavar="RUN", help="Directory of a finished run, or a weights file of one.")
]
WeightsOfRun = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Weights, e.g. swad. Default: those with the lowest loss on validation images."),
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
        Path | None, typer.Option("--output", "-o", help="Also write the predictions to this file, .csv or .json.")
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Print the most probable class of every image, and a summary by domain. Damaged images are named and skipped."""
    from swad.cli._console import MAX_ROWS, make_console, plain_table
    from swad.testbed.deploy.choose import find_weights
    from swad.testbed.deploy.images import find_images
    from swad.testbed.deploy.predict import predict
    from swad.testbed.measure.saved_run import find_device
    from swad.testbed.training.export import eval_group_size, load_predictor, read_card
    from swad.util.progress import progress_report

    if output is not None:
        require_choice("the suffix of --output", output.suffix, (".csv", ".json"))
        if output.resolve() in {path.resolve() for path in images}:
            raise ValueError(f"--output must not replace what is read, got {output}: name another file")
    where = find_device(device)
    file, _ = find_weights(run, weights)
    predictor, group_size = load_predictor(file), eval_group_size(read_card(file))
    found = find_images(images, predictor.class_names)
    print(
        f"predicting {counted(len(found), 'image')} with {file}"
        + f" in mixed groups of {group_size}" * bool(group_size)
    )
    shown: list[Prediction] = []
    by_domain: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    with progress_report() as progress, _open(output) as write:
        for row in predict(predictor, found, where, _warn, group_size=group_size, workers=workers, progress=progress):
            write(row)
            if len(shown) < MAX_ROWS:
                shown.append(row)
            counts = by_domain[row.domain]
            counts["images"] += 1
            counts["labeled"] += row.label != ""
            counts["correct"] += row.predicted == row.label
            counts["probability"] += row.probability
    table = plain_table("Image", "Class", "Probability", "Label", right=("Probability",))
    for row in shown:
        table.add_row(row.path, row.predicted, f"{row.probability:.3f}", row.label)
    console = make_console()
    console.print(table, highlight=False)
    if others := int(sum(counts["images"] for counts in by_domain.values())) - len(shown):
        print(f"and {others:,} more; --output predictions.csv writes all")
    numbers = ("Images", "Mean probability", "Accuracy, %")
    summary = plain_table("\nDomain", *(f"\n{name}" for name in numbers), right=[f"\n{name}" for name in numbers])
    for domain, counts in by_domain.items():
        accuracy = f"{100 * counts['correct'] / counts['labeled']:.1f}" if counts["labeled"] else "–"
        summary.add_row(domain, f"{counts['images']:,.0f}", f"{counts['probability'] / counts['images']:.3f}", accuracy)
    console.print(summary, highlight=False)
    if output is not None:
        print(f"wrote {output}")


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


@contextmanager
def _open(output: Path | None) -> Iterator[Callable[[Prediction], object]]:
    """Yield what writes a prediction, as CSV or into one JSON list; the file gets its name after the last one."""
    from swad.testbed.deploy.predict import Prediction
    from swad.util.files import atomic_write

    if output is None:
        yield lambda row: None
        return
    with atomic_write(output, follow_link=True) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        if output.suffix == ".csv":
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Prediction._fields)
            yield writer.writerow
        else:
            before = chain(["[\n"], repeat(",\n"))
            yield lambda row: file.write(next(before) + json.dumps(row._asdict(), ensure_ascii=False))
            file.write("\n]\n")
