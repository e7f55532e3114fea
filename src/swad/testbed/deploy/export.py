"""Export a saved model for programs without swad: torch.export (.pt2), ONNX (.onnx), or a directory that timm loads.

Each export is read back and compared with the predictor on real images before it gets its name, so a file that exists
is right. It holds no path of the machine that trained it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.transforms import Normalize, PredictorTransform, to_pil
from swad.testbed.deploy.images import find_images
from swad.testbed.measure.saved_run import open_run
from swad.testbed.training.export import Predictor, eval_group_size, input_line, summary
from swad.util.files import atomic_write, write_text
from swad.util.images import DataError
from swad.util.names import one_line
from swad.util.packages import require_extra

TOLERANCE = 1e-4
"""Largest difference of the logits from the predictor's, relative to the largest of them if that is above 1."""
N_IMAGES = 8
"""Images that an export is compared on; the graph is traced with another number, so this shows that it may vary."""

Run = Callable[[Tensor], Tensor]
"""From bytes of images, ``[batch, channels, size, size]``, to logits."""
Save = Callable[[Path], None]
"""Writes an export to a path."""


class ExportError(ValueError):
    """A model cannot be exported. The message is one line that says what to do."""


class PixelsToLogits(nn.Module):
    """A model with the normalization of its images, which nobody can forget then."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        normalize = predictor.transform.normalize
        self.model = predictor.model
        self.mean = nn.Buffer(normalize.mean)
        self.std = nn.Buffer(normalize.std)

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalize bytes and return logits."""
        return cast(Tensor, self.model((pixels.to(torch.float32) / 255 - self.mean) / self.std))


def comparison_pixels(
    transform: PredictorTransform, images: Sequence[Path] | None, run: Path, data: Path | None = None
) -> Tensor:
    """Return the bytes of images to compare on: of some files, or of validation images of every source of a run."""
    if images:
        return torch.stack([transform.pixels(image.path) for image in find_images(images, ())[:N_IMAGES]])
    if run.suffix == ".safetensors":
        raise ExportError(f"an export is compared on real images, and the file {run} has none: add --images")
    try:
        parts = [part for part in open_run(run, data).held_out.sources.val if len(part)]
        chosen = [(part.domain, part.keys[i]) for i in range(N_IMAGES) for part in parts if i < len(part)]
        return torch.stack([transform.pixels(to_pil(domain.image(int(key)))) for domain, key in chosen[:N_IMAGES]])
    except DataError as error:
        raise DataError(f"the export is compared on images of {run}, but {error}; or add --images") from None


def export_graph(predictor: Predictor, card: Mapping[str, Any], pixels: Tensor, output: Path) -> float:
    """Write a .pt2 or .onnx file and its model card, and return the largest difference on some images.

    `pixels` are the bytes of the images to compare on; the suffix of `output` says the format.
    """
    if size := eval_group_size(card):
        raise ExportError(
            f"an export predicts each image alone, but {card['algorithm']} looks at {size} images of a domain "
            "together: use swad.testbed.load_predictor, or another algorithm"
        )
    convert, read = {".pt2": (_to_pt2, _read_pt2), ".onnx": (_to_onnx, _read_onnx)}[output.suffix]
    content = {name: card[name] for name in ("description", "network", "algorithm", "classes", "input", "version")}
    try:
        save = convert(_trace(PixelsToLogits(predictor).eval(), pixels), json.dumps(content))
    except ImportError:
        raise
    except Exception as error:  # each exporter has classes of its own
        raise ExportError(
            f"torch cannot export {card['network']} trained with {card['algorithm']} to {output.name}: "
            f"{one_line(error, 120)}; use swad.testbed.load_predictor, or another network or algorithm"
        ) from None
    with atomic_write(output, follow_link=True) as partial:
        save(partial)
        difference = compare(read(partial), predictor, pixels)
    write_text(f"{output}.md", graph_card(output.name, card, predictor.transform.image_spec), follow_link=True)
    return difference


def compare(run: Run, predictor: Predictor, pixels: Tensor) -> float:
    """Return the largest difference between the logits of an export and of the predictor; too large is an error."""
    normalize = Normalize(predictor.transform.image_spec)
    with torch.inference_mode():
        expected = predictor.model(normalize(pixels))
        found = torch.cat([run(pixels[:1]), run(pixels[1:])]) if len(pixels) > 1 else run(pixels)
    difference = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    if not difference <= TOLERANCE:  # nor is nan
        raise ExportError(
            f"an export must give the predictor's logits within {TOLERANCE:g}, got a difference of {difference:.2g}: "
            "nothing was written; choose another format, or report the network"
        )
    return difference


def graph_card(file_name: str, card: Mapping[str, Any], spec: ImageSpec) -> str:
    """Return the model card of a .pt2 or .onnx file as Markdown, with the code that prepares an image."""
    lines = [
        *summary(file_name, card),
        "## Input and output",
        "",
        f"`pixels`: uint8 `[batch, {spec.channels}, {spec.size}, {spec.size}]`, any batch. `logits`: float32 "
        f"`[batch, {len(card['classes'])}]`; their softmax are probabilities. The normalization is part of the graph. "
        f"{input_line(card)} EXIF orientations are ignored, as in training.",
        "",
        "```python",
        *preparation(spec),
        "```",
        "",
        f"Written by swad {card['version']} with torch {torch.__version__}.",
        "",
    ]
    return "\n".join(lines)


def preparation(spec: ImageSpec) -> list[str]:
    """Return the code that makes `pixels` of the file photo.jpg with Pillow and NumPy, exactly as the transform."""
    size, mode = spec.size, "L" if spec.channels == 1 else "RGB"
    lines = ["import numpy", "import PIL.Image", "", f'image = PIL.Image.open("photo.jpg").convert("{mode}")']
    if spec.center_crop:
        lines += [
            f"sides = [int({round(size * 8 / 7)} * side / min(image.size)) for side in image.size]",
            "image = image.resize(sides, PIL.Image.Resampling.BILINEAR)",
            f"left, top = (round((side - {size}) / 2) for side in sides)",
            f"image = image.crop((left, top, left + {size}, top + {size}))",
        ]
    elif not spec.low_res:
        for height, width in filter(None, (spec.resized_to, (size, size))):
            lines.append(f"image = image.resize(({width}, {height}), PIL.Image.Resampling.BILINEAR)")
    array = "numpy.array(image)[None, None]" if mode == "L" else "numpy.array(image).transpose(2, 0, 1)[None]"
    return [*lines, f"pixels = numpy.ascontiguousarray({array})"]


def _trace(graph: nn.Module, pixels: Tensor) -> torch.export.ExportedProgram:
    # Two images: torch would take a batch of one for a constant. They are black, since the file keeps them.
    program = torch.export.export(
        graph, (torch.zeros_like(pixels[:1]).repeat(2, 1, 1, 1),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # with the paths of this machine
    return program


def _to_pt2(program: torch.export.ExportedProgram, card: str) -> Save:
    def save(path: Path) -> None:
        with path.open("wb") as file:  # by its path, torch would warn of a name without .pt2
            torch.export.save(program, file, extra_files={"card.json": card})

    return save


def _read_pt2(path: Path) -> Run:
    with path.open("rb") as file:
        return cast(Run, torch.export.load(file).module())


def _to_onnx(program: torch.export.ExportedProgram, card: str) -> Save:
    with require_extra("exporting to ONNX", "export"):
        import onnxruntime as onnxruntime
        import onnxscript as onnxscript  # which torch uses, with onnx
    exported = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_shapes={"pixels": {0: "batch"}},
    )
    assert exported is not None
    exported.model.metadata_props["card"] = card
    return exported.save


def _read_onnx(path: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda pixels: torch.from_numpy(session.run(["logits"], {"pixels": pixels.numpy()})[0])
