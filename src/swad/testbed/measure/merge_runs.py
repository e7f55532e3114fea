"""Merging weights of finished runs: their files, the score of a merge on validation images, and its batch norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from swad.merging.checkpoints import Checkpoint, is_checkpoint_folder, name_of
from swad.merging.weighted_mean import described, save
from swad.testbed.averages.segment_log import load_segments, read_segment
from swad.testbed.measure.kept_segments import build_estimate, build_evaluation, build_network
from swad.testbed.measure.saved_run import SavedRun, open_run, open_runs
from swad.testbed.models import weight_files
from swad.testbed.training import export
from swad.testbed.training.run_dir import SEGMENTS, RunError
from swad.util.names import listed

SNAPSHOTS = "snapshots"
"""A name for all snapshots of a run, in the order of training."""

Estimate = Callable[[nn.Module], object]


class SegmentMean(Mapping[str, Tensor]):
    """The mean of the weights in a kept segment, which is stored as their sum; computed when a tensor is asked for.

    It has the names of the run's last weights. Frozen tensors, which no segment has, are those of the last weights.

    Args:
        file: The segment.
        run: The run that kept it.
    """

    def __init__(self, file: Path, run: SavedRun) -> None:
        self.name, self.run = str(file), run
        self._last = run.file("last")
        self._segment = read_segment(file)  # mapped: a tensor is read when it is used

    @cached_property
    def _frozen(self) -> dict[str, Tensor]:
        segment = self._segment
        last = weight_files.read_safetensors(self._last).items()
        return {name: tensor for name, tensor in last if name not in segment.sum and name not in segment.buffers}

    def __getitem__(self, name: str) -> Tensor:
        segment = self._segment
        if name in segment.sum:
            return segment.sum[name] / len(segment)
        return segment.buffers[name] if name in segment.buffers else self._frozen[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._segment.sum, *self._segment.buffers, *self._frozen])

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass
class Found:
    """The checkpoints that some paths stand for."""

    files: list[Path | SegmentMean] = field(default_factory=list)
    """Weights files and segments of runs, and other checkpoints, in the order of the paths."""
    runs: list[SavedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    """The checkpoints that are not of runs."""

    def require_runs(self, purpose: str) -> SavedRun:
        """Return the first run, or raise if there are other checkpoints, whose images are not known."""
        if self.others or not self.runs:
            raise RunError(f"{purpose} needs runs, whose images it uses, got {self.others[0]}: give run directories")
        return self.runs[0]


def find_checkpoints(paths: Sequence[Path], names: Sequence[str], data: Path | None = None) -> Found:
    """Return the weights `names` of the runs in and below directories, and checkpoints of other programs.

    Args:
        paths: Run directories, directories of runs, and checkpoints that `swad.merge` reads.
        names: Weights of each run, e.g. "last", a step such as "2500", "snapshots" or "segments".
        data: Where the dataset is now, if it moved since training.
    """
    found = Found()
    for path in paths:
        if path.is_dir() and not is_checkpoint_folder(path):
            runs, notes = open_runs([path], data)
            found.runs += runs
            found.notes += notes
            found.files += [each for run in runs for each in _of_run(run, names)]
        elif path.parent.name == SEGMENTS and path.name.startswith("segment-"):
            run = next((run for run in found.runs if run.path == path.parents[1]), None) or open_run(
                path.parents[1], data
            )
            found.runs += [] if run in found.runs else [run]
            found.files.append(SegmentMean(path, run))
        else:
            found.files.append(path)
            found.others.append(path)
    _require_one_target(found.runs)
    return found


def _of_run(run: SavedRun, names: Sequence[str]) -> list[Path | SegmentMean]:
    """Return the checkpoints of a run that the names stand for, segments last."""
    if SNAPSHOTS in names and not run.snapshots:
        raise RunError(f"{run.path} has no snapshots: train it with --snapshots in a new directory")
    segments = load_segments(run.path / SEGMENTS) if SEGMENTS in names else []
    if SEGMENTS in names and not segments:
        raise RunError(f"{run.path} has no segments: train it with --keep-segments in a new directory")
    weights = [each for name in names if name != SEGMENTS for each in (run.snapshots if name == SNAPSHOTS else [name])]
    files = [_undamaged(run.file(name)) for name in run.full_names(weights)]
    return [*files, *(SegmentMean(file, run) for file in segments)]


def _undamaged(file: Path) -> Path:
    weight_files.read_safetensors(file)  # compares the checksum
    return file


def _require_one_target(runs: Sequence[SavedRun]) -> None:
    """Raise if a merged run was trained on the target of another."""
    held_out = {(run.config.dataset, run.config.targets): run.path for run in runs}
    if len(held_out) > 1:
        first, other, *_ = held_out.values()
        raise RunError(
            f"merged runs must hold out the same target of the same dataset, or the merged weights have seen it; "
            f"{first} and {other} differ: merge the runs of one target"
        )


class RunScorer:
    """The accuracy of weights on the validation images of a run's sources: the mean over domains, as in selection.

    Args:
        run: The run whose validation images and network are used.
        device: Where to evaluate.
        workers: Processes that read images.
        estimate: Estimates the batch norms of weights before they are scored, from `build_bn_estimate`.
    """

    def __init__(
        self, run: SavedRun, device: torch.device, workers: int | None = None, estimate: Estimate | None = None
    ) -> None:
        self._model, self._estimate = build_network(run, device), estimate
        self._evaluate = build_evaluation(run, self._model, run.held_out.sources.val, device, workers, [])

    def __call__(self, weights: dict[str, Tensor]) -> float:
        """Return the accuracy of a state dict."""
        self._model.load_state_dict(weights)
        if self._estimate is not None:
            self._estimate(self._model)
        return fmean(score.accuracy for score in self._evaluate().values())


def build_bn_estimate(run: SavedRun, device: torch.device, workers: int | None) -> Estimate:
    """Return a function that estimates batch norms on the run's training images; raise if the run froze them."""
    estimate = build_estimate(run, device, workers)
    if estimate is None:
        raise RunError(
            f"{run.path} was trained with frozen batch norms, which need no new statistics: leave out --update-bn"
        )
    return estimate


def with_batch_norms(
    weights: dict[str, Tensor], run: SavedRun, device: torch.device, estimate: Estimate
) -> dict[str, Tensor]:
    """Return the weights with estimated batch norms."""
    model = build_network(run, device)
    model.load_state_dict(weights)
    estimate(model)
    return export.cpu_weights(model)


def split_notes(runs: Sequence[SavedRun]) -> list[str]:
    """Say that validation images of one run were training images of another, if they were."""
    trials = sorted({run.config.trial for run in runs})
    if len(trials) < 2:
        return []
    return [
        f"scores use the validation images of trial {runs[0].config.trial}, on most of which the runs of other "
        f"trials were trained, so these score too high: runs of one trial, e.g. with other seeds, compare fairly"
    ]


def save_merged(
    path: Path, weights: dict[str, Tensor], checkpoints: Sequence[Checkpoint], coefficients: Sequence[float]
) -> list[Path]:
    """Write merged weights, with a model card if the last checkpoint has one, and return the files."""
    card = _card(checkpoints[-1])
    if card is None:
        save(path, weights, checkpoints, coefficients)
        return [path]
    merged = described(checkpoints, coefficients)
    parts = [f"{100 * part['coefficient']:.3g} % {part['checkpoint']}" for part in merged["merged"]]
    text = f"Merged from {listed(parts, 5)}"
    export.save_weights(path, weights, {**card, "description": text, "range": None, "scores": None, **merged})
    return [path, path.with_suffix(".md")]


def _card(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the model card of a weights file that a run wrote, or of the run; None for other checkpoints."""
    if isinstance(checkpoint, SegmentMean):
        return _card(checkpoint.run.file("last"))
    if not name_of(checkpoint).endswith(".safetensors"):
        return None
    with weight_files.open_safetensors(name_of(checkpoint)) as file:
        has_card = weight_files.CARD in (file.metadata() or {})
    return export.read_card(name_of(checkpoint)) if has_card else None
