"""Export a model to a directory that timm loads, and push it to a hub: ``timm.create_model("local-dir:DIRECTORY")``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from swad.testbed.deploy.export import ExportError, compare
from swad.testbed.models import catalog
from swad.testbed.training.export import Predictor, input_line, summary, wraps_network
from swad.util.files import write_text
from swad.util.names import one_line
from swad.util.packages import require_extra


def export_timm(predictor: Predictor, card: Mapping[str, Any], pixels: Tensor, output: Path) -> float:
    """Write a directory that timm loads, with a model card, and return the largest difference on some images.

    `pixels` are the bytes of the images to compare on; `output` must not exist or be empty.
    """
    if wraps_network(card) or not catalog.in_timm(card["network"]):
        raise ExportError(
            f"a directory for timm needs a network of timm, got {card['network']} trained with {card['algorithm']}, "
            "which timm does not have: export to .onnx or .pt2"
        )
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ExportError(f"{output} exists already: remove it, or choose another directory (-o)")
    timm = catalog.import_timm()
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        _save(timm, predictor, card, partial)
        loaded = timm.create_model(f"local-dir:{partial}", pretrained=True).eval()
        difference = compare(lambda pixels: loaded(predictor.transform.normalize(pixels)), predictor, pixels)
        partial.chmod(0o755)  # temporary directories are private
        partial.replace(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return difference


def push_to_hub(directory: Path, repository: str) -> str:
    """Upload a directory to a repository of the hub in one commit, and return the address.

    A repository that does not exist is created, a public one.
    """
    with require_extra("pushing to a hub", "vision"):
        from huggingface_hub import HfApi
    try:
        api = HfApi(library_name="swad")
        address = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=directory, commit_message="Add the model")
    except Exception as error:  # the hub's client and its connection have many classes
        raise ExportError(
            f"cannot push {directory} to {repository}: {one_line(error, 200)}; the directory is complete, so check the "
            f"connection and `hf auth login`, then run `hf upload {repository} {directory}`"
        ) from None
    return str(address)


def _save(timm: Any, predictor: Predictor, card: Mapping[str, Any], folder: Path) -> None:
    model, spec = cast(Any, predictor.model), predictor.transform.image_spec
    model.pretrained_cfg = {
        **model.pretrained_cfg,
        "input_size": (spec.channels, spec.size, spec.size),
        "mean": spec.mean,
        "std": spec.std,
        "interpolation": "bilinear",
        # timm's name for an image that is resized to a square without keeping its proportions.
        "crop_mode": "center" if spec.center_crop else "squash",
        "crop_pct": 7 / 8 if spec.center_crop else 1.0,
        "num_classes": len(predictor.class_names),
        **dict.fromkeys(("tag", "license", "pool_size")),  # of the weights that training started from
    }
    arguments = {"in_chans": spec.channels}
    if catalog.takes_image_size(card["network"], spec.size):
        arguments["img_size"] = spec.size
    labels = {"label_names": list(predictor.class_names)}
    timm.models.save_for_hf(model, folder, model_config=labels, model_args=arguments, safe_serialization=True)
    (folder / "model.safetensors").chmod(0o644)  # as any other file: safetensors makes it private
    text = _README.format(summary="\n".join(summary(card["network"], card)), input_line=input_line(card))
    write_text(folder / "README.md", text)


_README = """---
library_name: timm
pipeline_tag: image-classification
tags: [image-classification, timm, swad]
---
{summary}
{input_line} EXIF orientations are ignored, as in training.
"""
