"""SWAD fit-on-val of Table 5: the window of a finished run whose average is most accurate on source validation.

The segments that the run kept are averaged over every window, S (S + 1) / 2 of them for S evaluations, and the best
average is evaluated as the run's own averages are. The result is stored in the run directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.segment_log import load_segments
from swad.averaging.segment_windows import fit_on_val
from swad.data.loaders import EvalLoader
from swad.data.splits import DomainSplit
from swad.experiments.saved_run import SavedRun, find_device, open_run
from swad.training.run_dir import SEGMENTS, RunError, read_json
from swad.util.files import write_json
from swad.util.progress import Progress
from swad.util.statistics import mean

FILE = "fit_on_val.json"
Images = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class FittedWindow:
    """The chosen window and the accuracies of its average."""

    first: int
    last: int
    validation: float
    """Mean accuracy on the sources' validation images, which chose the window."""
    out_of_domain: float
    """Accuracy on the target's in split."""
    in_domain: float
    """Mean accuracy on the sources' test images; on validation images if the run has no test split."""


def fit_run(
    path: Path,
    *,
    device: str = "cpu",
    workers: int | None = None,
    data: Path | None = None,
    progress: Progress | None = None,
) -> FittedWindow:
    """Return the best window of a finished run, from its file or by trying all.

    Args:
        path: The run directory.
        device: Device to evaluate on.
        workers: Processes that read images.
        data: Dataset directory, if it moved since training.
        progress: Called after every window.
    """
    stored = read_json(path / FILE)
    if isinstance(stored, dict) and stored.keys() == FittedWindow.__dataclass_fields__.keys():
        return FittedWindow(**stored)
    run = open_run(path, data)
    segments = load_segments(path / SEGMENTS)
    if not segments:
        raise RunError(f"{path} kept no segments, which fit-on-val chooses from: train it with --keep-segments")
    torch_device = find_device(device)
    sources, target = run.held_out
    model = run.model("last", torch_device)
    batch_size = run.batch_size(torch_device)
    validation = _load(run, sources.val, torch_device, workers)
    choice = fit_on_val(segments, model, lambda live: _mean_accuracy(live, validation, batch_size), progress)
    tests = _load(run, sources.test, torch_device, workers) if sources.test else validation
    fitted = FittedWindow(
        choice.first,
        choice.last,
        choice.score,
        _mean_accuracy(model, _load(run, target.train, torch_device, workers), batch_size),
        _mean_accuracy(model, tests, batch_size),
    )
    write_json(path / FILE, asdict(fitted))
    return fitted


def _load(run: SavedRun, parts: Sequence[DomainSplit], device: torch.device, workers: int | None) -> Images:
    """Load all images of some splits onto the device."""
    images: dict[str, Any] = {}
    for part in parts:
        loader = EvalLoader(part, run.held_out.sources.image_spec, 256, workers=workers, device=device)
        pixels, labels = zip(*loader, strict=True)
        images[part.name] = (torch.cat(pixels), torch.cat(labels))
    return images


@torch.no_grad()
def _mean_accuracy(model: nn.Module, images: Mapping[str, tuple[Tensor, Tensor]], batch_size: int) -> float:
    """Return the unweighted mean over domains of the accuracy."""
    accuracies = []
    for pixels, labels in images.values():
        batches = zip(torch.split(pixels, batch_size), torch.split(labels, batch_size), strict=True)
        correct = sum(int((model(batch).argmax(1) == truth).sum()) for batch, truth in batches)
        accuracies.append(correct / len(labels))
    return mean(accuracies)
