"""Finished runs, opened to measure their weights: the weights that each has, and the images to evaluate them on.

Images come from the run's own split. *Seen* images are those of the source domains (by default training images),
*unseen* images are those of the target; neither are augmented. A fixed subset of each domain is used, with the classes
in proportion. It is the same for all weights and for every run of that target and trial, so differences are paired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from swad.testbed.algorithms.hyperparameters import fill
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data.domains import IntArray
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import DomainSplit, HeldOut, Sources, hold_out
from swad.testbed.models import weight_files
from swad.testbed.results.records import CONFIG
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs
from swad.testbed.training import export
from swad.testbed.training.checks import device_problem
from swad.testbed.training.config import ResolvedConfig
from swad.testbed.training.dataset import load_dataset
from swad.testbed.training.run_dir import RunError, read_done, read_stored
from swad.util.files import require_regular
from swad.util.images import DataError
from swad.util.names import listed, snapshot_name

SourceSplit = Literal["training", "validation", "all"]
"""Which images of the source domains are measured; of the target it is always all of them."""

WINDOW = "window"
"""Name of the live weights inside the range that SWAD averaged: F is the mean over several of the run's snapshots."""
N_WINDOW = 5
"""Largest number of snapshots that stand for the window."""


@dataclass(frozen=True)
class Images:
    """Images and labels by domain, on the device, and which of the domains the run was trained on."""

    by_domain: Mapping[str, tuple[Tensor, Tensor]] = field(repr=False)
    seen: tuple[str, ...]
    unseen: tuple[str, ...]

    def side_of(self, domain: str) -> str:
        """Return "seen" or "unseen"."""
        return "seen" if domain in self.seen else "unseen"

    def side(self, name: str) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the images of one side, "seen" or "unseen"."""
        return {domain: self.by_domain[domain] for domain in {"seen": self.seen, "unseen": self.unseen}[name]}


@dataclass(frozen=True)
class SavedRun:
    """A finished run: its config, its weights and its images."""

    path: Path
    """The run directory."""
    config: ResolvedConfig
    weights: Mapping[str, str]
    """Weights files by name, relative to the run directory."""
    data: Path | None = None
    """Where the dataset is now, if it moved since training."""
    ranges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The steps that each average took, by name: start_step, end_step, ..."""

    @property
    def name(self) -> str:
        """The name of the run: target and trial."""
        return self.config.name

    @property
    def reported(self) -> tuple[str, ...]:
        """The weights that the run reports: `best`, `last` and averages, but no snapshots."""
        return tuple(name for name in self.weights if not name.startswith("step-"))

    @property
    def averages(self) -> tuple[str, ...]:
        """The averages that the run reports."""
        return tuple(name for name in self.reported if name not in ("best", "last"))

    @property
    def snapshots(self) -> dict[str, int]:
        """The steps at which live weights were saved during training, by the names of the weights."""
        return {name: int(name.removeprefix("step-")) for name in sorted(self.weights) if name.startswith("step-")}

    @property
    def averaged_range(self) -> tuple[int, int] | None:
        """First and last step that SWAD averaged, t_s and t_e; None if the run has no SWAD."""
        for name in sorted(self.ranges, key=lambda name: (name != "swad", name)):
            start, end = self.ranges[name].get("start_step"), self.ranges[name].get("end_step")
            if name.startswith("swad") and start is not None and end is not None:
                return int(start), int(end)
        return None

    @property
    def window_snapshots(self) -> tuple[str, ...]:
        """At most `N_WINDOW` of the snapshots inside the range that SWAD averaged, evenly chosen."""
        start, end = self.averaged_range or (1, 0)
        inside = [name for name, step in self.snapshots.items() if start <= step <= end]
        if len(inside) <= N_WINDOW:
            return tuple(inside)
        return tuple(inside[round(k * (len(inside) - 1) / (N_WINDOW - 1))] for k in range(N_WINDOW))

    def file(self, name: str) -> Path:
        """Return the file of weights that the run reports, or of a snapshot ("2500" or "step-002500")."""
        full_name = snapshot_name(int(name)) if name.isdigit() else name
        if full_name not in self.weights:
            raise RunError(f"{self.path} has no weights {name!r}; it has {', '.join(self.weights)}")
        path = self.path / self.weights[full_name]
        if not path.is_file():
            raise RunError(f"{path} is missing: restore it, train the run again, or show stored results with --stored")
        return path

    def full_name(self, name: str) -> str:
        """Return the full name of weights: "300" stands for "step-000300"; `WINDOW` stays."""
        if name == WINDOW:
            if not self.window_snapshots:
                raise RunError(
                    f"{self.path} has no snapshot inside the range that SWAD averaged "
                    f"({'-'.join(map(str, self.averaged_range or ())) or 'there is none'}): train it with SWAD and "
                    "--snapshots in a new directory"
                )
            return name
        return self.file(name).stem

    def full_names(self, names: Sequence[str]) -> list[str]:
        """Return the full names of weights, each once."""
        return list(dict.fromkeys(map(self.full_name, names)))

    def state(self, name: str) -> dict[str, Tensor]:
        """Read weights as a state dict."""
        return weight_files.read_safetensors(self.file(name))

    def model(self, name: str, device: torch.device | str = "cpu") -> nn.Module:
        """Build the network with these weights, in evaluation mode."""
        return export.load_predictor(self.file(name)).model.to(device)

    def fingerprint(self, name: str) -> str:
        """Return a hash of a weights file, or of those of the window, to detect a change after a measurement."""
        if name == WINDOW:
            marks = "".join(map(self.fingerprint, self.window_snapshots))
            return hashlib.blake2b(marks.encode(), digest_size=8).hexdigest()
        path = self.file(name)
        with weight_files.open_safetensors(path):  # its header says how large the file is, before all of it is read
            return fingerprint(path)

    def image_settings(self, n_images: int | None) -> dict[str, int | None]:
        """Return the settings that determine the images of each domain, for the key of stored rows.

        The size of mixed groups is among them only if predictions depend on the group. Results that were stored before
        the groups were mixed lack it, so they are not reused.
        """
        group_size = self.eval_group_size
        return {"images": n_images} | ({} if group_size is None else {"mixed_groups": group_size})

    @cached_property
    def held_out(self) -> HeldOut:
        """The run's dataset with the run's own split, and images as the run evaluated them."""
        config = self.config
        dataset = load_dataset(config, self.data)
        # Files are read without the run's cache, so resize them first as the cache did.
        for path in map(self.path.joinpath, self.weights.values()):
            if path.is_file():
                resized_to = export.read_card(path)["input"].get("resized_to")
                dataset = replace(dataset, image_spec=replace(dataset.image_spec, resized_to=resized_to))
                break
        return hold_out(dataset, config.targets, trial=config.trial, three_way=config.three_way)

    def images(
        self,
        n: int | None,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        split: SourceSplit = "training",
    ) -> Images:
        """Load at most `n` images of every domain (None: all) onto the device; `split` is that of the sources."""
        sources, target = self.held_out
        by_domain = {}
        for part in (*source_splits(sources, split), *target.full):
            images, labels = zip(*self.loader(part, n, torch.device(device), workers), strict=True)
            by_domain[part.name] = (torch.cat(images), torch.cat(labels))
        return Images(by_domain, sources.names, target.names)

    def loader(self, part: DomainSplit, n: int | None, device: torch.device, workers: int | None = None) -> EvalLoader:
        """Return a loader of at most `n` images of a split."""
        spec = self.held_out.sources.image_spec
        return EvalLoader(self.subset(part, n), spec, self.batch_size(device), workers=workers, device=device)

    def subset(self, part: DomainSplit, n: int | None) -> DomainSplit:
        """Choose at most `n` images of a split, in mixed groups if predictions depend on the group."""
        chosen = stratified_subset(part, n)
        return chosen if self.eval_group_size is None else mixed_groups(chosen, self.eval_group_size)

    @property
    def eval_group_size(self) -> int | None:
        """Number of images that must be evaluated together, if predictions depend on the batch (ARM, MTL)."""
        algorithm = get_algorithm(self.config.algorithm)
        return algorithm.eval_group_size(fill(algorithm.Hyperparameters, self.config.hyperparameters))

    def batch_size(self, device: torch.device) -> int:
        """Number of images per forward pass; on a CPU small batches of large images avoid page faults."""
        default = 256 if device.type != "cpu" or self.held_out.sources.image_spec.low_res else 16
        return self.eval_group_size or default


def fingerprint(path: Path) -> str:
    """Return a short hash of a file."""
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def source_splits(sources: Sources, split: SourceSplit) -> tuple[DomainSplit, ...]:
    """Return the images of each source domain that a measurement takes."""
    if split == "training":
        return sources.train
    if split == "validation":
        return sources.val
    parts = (sources.train, sources.val, sources.test) if sources.test else (sources.train, sources.val)
    return tuple(
        replace(of_domain[0], split="full", keys=np.sort(np.concatenate([part.keys for part in of_domain])))
        for of_domain in zip(*parts, strict=True)
    )


def stratified_subset(split: DomainSplit, n: int | None) -> DomainSplit:
    """Choose at most `n` images of a split with the classes in proportion, the same ones every time.

    >>> from swad.testbed.data import benchmarks
    >>> from swad.testbed.data.splits import hold_out
    >>> train = hold_out(benchmarks.load("digits"), "paper").sources.train[0]
    >>> subset = stratified_subset(train, 50)
    >>> len(subset), len(set(subset.labels.tolist()))
    (50, 10)
    """
    if n is None or n >= len(split):
        return split
    if n < 1:
        raise DataError(f"at least 1 image of each domain is needed, got {n}")
    labels = split.labels
    classes, counts = np.unique(labels, return_counts=True)
    shares = n * counts / len(split)
    sizes = np.floor(shares).astype(int)
    # Images that rounding left over go to the classes that lost most; among equals to the first class.
    for i in np.argsort(sizes - shares, kind="stable")[: n - int(sizes.sum())]:
        sizes[i] += 1
    random = np.random.RandomState(0)
    chosen: list[IntArray] = []
    for label, size in zip(classes, sizes, strict=True):
        chosen.append(np.sort(random.permutation(np.flatnonzero(labels == label))[:size]))
    keys: IntArray = split.keys[np.sort(np.concatenate(chosen))]
    return replace(split, keys=keys)


def mixed_groups(split: DomainSplit, size: int) -> DomainSplit:
    """Shuffle a split and cut it to whole groups, for algorithms whose predictions depend on the group of images.

    The images of a target are ordered by class, and a group of one class is unlike any batch in training.
    """
    keys: IntArray = np.random.RandomState(0).permutation(split.keys)
    return replace(split, keys=keys[: max(1, len(split) // size) * size])


def find_device(name: str) -> torch.device:
    """Return a device by name, for `auto` a GPU where there is one; raise an error if this machine does not have it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if problem := device_problem(name):
        raise RunError(problem)
    return torch.device(name)


def open_run(path: Path | str, data: Path | str | None = None) -> SavedRun:
    """Open one finished run."""
    path = Path(path)
    config = read_stored(path / CONFIG)
    if not isinstance(config, dict):
        raise RunError(f"{path} holds no run: give the directory of a run, as `swad train` and `swad sweep` write it")
    done = read_done(path)
    if done is None:
        raise RunError(f"{path} is unfinished: run its `swad train` or `swad sweep run` again to finish it")
    weights: dict[str, Any] = done.get("weights") or {}
    if not weights:
        raise RunError(f"{path} saved no weights: train it again in a new directory")
    ranges: dict[str, Any] = done.get("ranges") or {}
    return SavedRun(path, ResolvedConfig.from_json(config, path), weights, None if data is None else Path(data), ranges)


# ------------------------------------------------------------ several runs


def finished_runs(paths: Sequence[Path | str]) -> tuple[list[RunData], list[str]]:
    """Return the finished runs, each once, and a note on each reason to skip others.

    Args:
        paths: Run directories, or directories of runs.
    """
    runs: dict[Path, RunData] = {}
    skipped: dict[str, list[Path]] = {}
    for path in paths:
        found = find_runs(path, warn=False)
        for entry in found.skipped:
            skipped.setdefault(entry.reason, []).append(entry.path)
        for run in found:
            if not run.finished:
                skipped.setdefault("unfinished", []).append(run.path)
            else:
                runs[run.path] = run
    return list(runs.values()), skip_notes(skipped)


def skip_notes(skipped: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return one note for each reason for which runs were skipped."""
    return [f"{listed(paths, 1)} skipped: {reason}" for reason, paths in skipped.items() if paths]


def open_runs(paths: Sequence[Path | str], data: Path | str | None = None) -> tuple[list[SavedRun], list[str]]:
    """Open all finished runs in and below some directories, and return them with notes on those that were skipped."""
    runs, notes = finished_runs(paths)
    if not runs:
        reason = "; ".join(notes) or "no directory was given"
        again = "run `swad train` or `swad sweep run` again to finish one"
        raise RunError(f"there is no finished run to measure ({reason}): {again}")
    return [open_run(run.path, data) for run in runs], notes
