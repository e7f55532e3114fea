"""What commands that average kept segments share: finished runs, their network, their images and its evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from swad.gpu.fused_vit import fuse_kernels
from swad.testbed.averages.segment_log import last_update, load_segments
from swad.testbed.data.cache import ImageCache, open_cache
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import DomainSplit
from swad.testbed.measure.saved_run import SavedRun
from swad.testbed.results.runs import load_run
from swad.testbed.training.config import ResolvedConfig
from swad.testbed.training.dataset import load_dataset
from swad.testbed.training.distributed import Dist
from swad.testbed.training.evaluation import ResidentEvaluation, Score, eval_loaders, evaluate_splits, max_kept_bytes
from swad.testbed.training.numerics import autocast
from swad.testbed.training.output import estimate_statistics
from swad.testbed.training.recipes import reads_cache
from swad.testbed.training.run_dir import SEGMENTS, RunError
from swad.testbed.training.state import build_algorithm, build_loader
from swad.util.packages import has_triton

MAX_SEGMENTS = 25
"""Segments that remain at most after merging: 325 windows."""

Evaluate = Callable[[], Mapping[str, Score]]


def merged_by_default(n_segments: int) -> int:
    """Return how many segments to merge into one, so that there are not too many windows to evaluate.

    >>> merged_by_default(25), merged_by_default(26)
    (1, 2)
    """
    return math.ceil(n_segments / MAX_SEGMENTS)


def merged_segments(files: Sequence[Path], every: int) -> list[tuple[int, int]]:
    """Return the first and the last step of segments after merging.

    >>> merged_segments([Path(f"segment-{step:08d}.pt") for step in (4, 8, 12)], every=2)
    [(1, 8), (9, 12)]
    """
    lasts = [last_update(file) for file in files]
    lasts = [*lasts[every - 1 : -1 : every], *lasts[-1:]]
    return [(before + 1, last) for before, last in zip([0, *lasts[:-1]], lasts, strict=True)]


def kept_segments(path: Path) -> list[Path]:
    """Return the files of a run's segments, none if it kept none; raise unless there is one for every evaluation."""
    files = load_segments(path / SEGMENTS)
    if not files:
        return []
    records = load_run(path).frame
    ends = {last_update(file) for file in files}
    evaluations = set(records.step[records.metric == "valley_loss"].tolist())
    if wrong := sorted(ends ^ evaluations):
        state = "is missing" if wrong[0] in evaluations else "is not of this run"
        raise RunError(
            f"{path / SEGMENTS}: the segment up to update {wrong[0]} {state}, so its averages would be others: "
            "restore the files, or train the run again"
        )
    return files


def build_network(run: SavedRun, device: torch.device) -> nn.Module:
    """Build the network of a run from any weights of it that still are there; all of its weights are replaced later."""
    for name in run.weights:
        if (run.path / run.weights[name]).is_file():
            return run.model(name, device)
    raise RunError(f"{run.path} has no weights left to build its network from: restore one of {', '.join(run.weights)}")


def build_fast_network(run: SavedRun, device: torch.device) -> nn.Module:
    """Build the network of a run; on a GPU in the layout and with the fused kernels of its training."""
    model, spec = build_network(run, device), run.held_out.sources.image_spec
    if device.type == "cuda" and run.config.precision == "bf16":
        model = model.to(memory_format=torch.channels_last)
        if has_triton():
            images = torch.zeros(2, spec.channels, spec.size, spec.size, device=device).normal_()
            with autocast(run.config, device):
                fuse_kernels(model, images)
    return model


def build_loaders(
    run: SavedRun, parts: Mapping[str, Sequence[DomainSplit]], device: torch.device, workers: int | None
) -> dict[str, dict[str, EvalLoader]]:
    """Return the images of some splits by their name and by domain, read as the run itself read them.

    Args:
        parts: Splits of the sources or of the target, by name.
        device: Device of the images, which are kept there if they fit.
        workers: Processes that read images.
    """
    config = run.config if workers is None else replace(run.config, workers=workers)
    sources, cache = run.held_out.sources, _cache(run, config)
    keep = images_fit(run, parts, device)
    return {
        name: eval_loaders(
            config,
            sources.image_spec,
            Dist(device),
            run.eval_group_size,
            cache,
            splits,
            keep,
            augment=config.augment_validation
            and any(part.split == "val" and part.name in sources.names for part in splits),
        )
        for name, splits in parts.items()
    }


def build_estimate(run: SavedRun, device: torch.device, workers: int | None) -> Callable[[nn.Module], object] | None:
    """Return a function that estimates batch-norm statistics as the run did for its averages; None if it froze them.

    Args:
        run: The run.
        device: Device of the network.
        workers: Processes that read images.
    """
    if run.config.freeze_bn:
        return None
    config = replace(run.config, weights="random")  # its weights are not used
    config = config if workers is None else replace(config, workers=workers)
    sources, dist = run.held_out.sources, Dist(device)
    algorithm = build_algorithm(config, sources, dist)
    loader = build_loader(config, sources, dist, algorithm, _cache(run, config), lambda line: None)
    return lambda model: estimate_statistics(model, config, algorithm, loader, dist)


def _cache(run: SavedRun, config: ResolvedConfig) -> ImageCache | None:
    """Open the cache of decoded images, if the run reads from one."""
    if not reads_cache(config):
        return None
    dataset = load_dataset(config, run.data)
    return open_cache(dataset, config.cache, config.cache_size, workers=config.workers)


def build_evaluation(
    run: SavedRun,
    model: nn.Module,
    parts: Sequence[DomainSplit],
    device: torch.device,
    workers: int | None,
    notes: list[str],
) -> Evaluate:
    """Return a function that evaluates the model's current weights; on a GPU by a graph, with images kept there."""
    loaders = build_loaders(run, {"": parts}, device, workers)[""]
    dist = Dist(device)

    def precision() -> Any:
        return autocast(run.config, device)

    if device.type != "cuda" or run.eval_group_size is not None or not images_fit(run, {"": parts}, device):
        return lambda: evaluate_splits(model, loaders, dist, precision)
    return ResidentEvaluation(model, loaders, dist, precision, notes.append)


def images_fit(run: SavedRun, parts: Mapping[str, Sequence[DomainSplit]], device: torch.device) -> bool:
    """Return whether the bytes of all images can be kept on the device."""
    spec = run.held_out.sources.image_spec
    n_images = sum(len(part) for splits in parts.values() for part in splits)
    return n_images * spec.channels * spec.size**2 <= max_kept_bytes(device)
