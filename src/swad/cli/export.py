"""`swad export`: the weights of a run as a model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli._options import DataNow, words
from swad.cli.predict import RunOrFile, WeightsOfRun
from swad.util.names import counted, require_choice

EXAMPLES = """
swad export runs/my_images/erm/none-0 -o model.onnx
swad export runs/my_images/erm/none-0 -o model.pt2 --weights swad
swad export runs/my_images/erm/none-0 -o my_model --to timm --push me/my_model
swad export swad.safetensors -o model.onnx --images photos
"""


def export(
    run: RunOrFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File ending in .onnx or .pt2, or with --to timm a new directory.")
    ] = Path("model.onnx"),
    weights: WeightsOfRun = None,
    to: Annotated[
        str | None, typer.Option(help="onnx, pt2 (torch.export) or timm. Default: the suffix of --output.")
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH,...", help="Images to compare on: folders or files. Default: validation images of RUN."
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="USER/NAME",
            help="Upload the directory for timm to the Hugging Face hub; a new repository is public.",
        ),
    ] = None,
    data: DataNow = None,
) -> None:
    """Write a model that other programs run, after comparing it with ours on real images.

    The graphs (.onnx, .pt2) take the bytes of resized images and contain the normalization. The model card beside them
    says how images are resized.
    """
    from swad.cli._console import short_warnings
    from swad.testbed.deploy.choose import find_weights
    from swad.testbed.deploy.export import comparison_pixels, export_graph
    from swad.testbed.deploy.timm_model import export_timm, push_to_hub
    from swad.testbed.training.export import load_predictor, read_card

    to = to or output.suffix.removeprefix(".")
    require_choice("--to, or the suffix of --output,", to, ("onnx", "pt2", "timm"))
    if to != "timm" and output.suffix != f".{to}":
        raise ValueError(f"a model for {to} needs a file that ends in .{to}, got {output}: rename it (--output)")
    if push is not None and to != "timm":
        raise ValueError("--push uploads a directory for timm: add --to timm")
    file, candidates = find_weights(run, weights)
    for name, loss, accuracy, _ in candidates:
        print(f"{name}: loss {loss:.4f}, accuracy {100 * accuracy:.2f} % on validation images of the sources")
    if candidates:
        print(f"chosen by that loss: {file.stem}; --weights takes another")
    predictor, card = load_predictor(file), read_card(file)
    pixels = comparison_pixels(predictor.transform, [Path(path) for path in words(images)] or None, run, data)
    with short_warnings():
        difference = (export_timm if to == "timm" else export_graph)(predictor, card, pixels, output)
    print(f"equals {file.name} on {counted(len(pixels), 'image')} (largest difference of the logits: {difference:.1g})")
    print(f"wrote {output}" + ("" if to == "timm" else f" and {output}.md"), flush=True)
    if push is not None:
        print(f"pushed to {push_to_hub(output, push)}")
