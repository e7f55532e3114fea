"""`swad export`: the weights of a run as a model for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swad.cli._options import DataNow
from swad.cli.predict import RunOrFile, WeightsOfRun
from swad.util.names import counted, require_choice

if TYPE_CHECKING:
    from swad.testbed.deploy.choose import Candidate

EXAMPLES = """
swad export runs/my_images/erm/none-0 -o model.onnx
swad export runs/my_images/erm/none-0 -o model.pt2 --weights swad
swad export runs/my_images/erm/none-0/weights/swad.safetensors -o my_model --to timm --images photos
"""


def export(
    run: RunOrFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File ending in .onnx or .pt2, or with --to timm a new directory.")
    ] = Path("model.onnx"),
    weights: WeightsOfRun = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="onnx, pt2 (torch.export) or timm. Default: the suffix of --output."),
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Images to compare the export on: folders or files. Default: validation images of the run.",
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="USER/NAME", help="With --to timm: upload the directory to the Hugging Face hub."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository of --push as a private one.")
    ] = False,
    data: DataNow = None,
) -> None:
    """Write a model that other programs run, after comparing it with ours on real images.

    The graphs (.onnx, .pt2) take the bytes of resized images and contain the normalization. The model card beside them
    says how images are resized.
    """
    from swad.cli._console import short_warnings
    from swad.testbed.deploy.choose import find_weights
    from swad.testbed.deploy.export import card_path, export_graph, file_pixels, validation_pixels
    from swad.testbed.deploy.images import find_images
    from swad.testbed.deploy.timm_model import export_timm, push_to_hub
    from swad.testbed.measure.saved_run import open_run
    from swad.testbed.training.export import load_predictor, read_card
    from swad.util.images import DataError

    to = to or output.suffix.removeprefix(".")
    require_choice("--to, or the suffix of --output,", to, ("onnx", "pt2", "timm"))
    if to != "timm" and output.suffix != f".{to}":
        raise ValueError(f"a model for {to} needs a file that ends in .{to}, got {output}: rename it (--output)")
    if push is not None and to != "timm":
        raise ValueError("--push uploads a directory for timm: add --to timm")
    file, candidates = find_weights(run, weights)
    _print_choice(candidates)
    predictor, card = load_predictor(file), read_card(file)
    if images:
        pixels = file_pixels([image.path for image in find_images(images, ())], predictor.transform)
    elif run == file:
        raise ValueError(f"an export is compared on real images, and {run} is not a run that has some: add --images")
    else:
        try:
            pixels = validation_pixels(open_run(run, data), predictor.transform)
        except DataError as error:
            raise DataError(
                f"the export is compared on images of the run, which cannot be read: {error}; or add --images"
            ) from None
    with short_warnings():
        difference = (export_timm if to == "timm" else export_graph)(predictor, card, pixels, output)
    print(f"equals {file.name} on {counted(len(pixels), 'image')} (largest difference of the logits: {difference:.1g})")
    print(f"wrote {output}" + ("" if to == "timm" else f" and {card_path(output)}"), flush=True)
    if push is not None:
        print(f"pushed to {push_to_hub(output, push, private)}")


def _print_choice(candidates: Sequence[Candidate]) -> None:
    """Print what the weights were chosen by."""
    from swad.cli._console import make_console, plain_table

    if not candidates:
        return
    right = ("Validation loss", "Validation accuracy, %")
    table = plain_table("Weights", *right, right=right)
    for candidate in candidates:
        table.add_row(candidate.name, f"{candidate.loss:.4f}", f"{100 * candidate.accuracy:.2f}")
    console = make_console()
    console.print(table, highlight=False)
    print(f"chosen by the loss on validation images of the sources: {candidates[0].name}; --weights takes another")
