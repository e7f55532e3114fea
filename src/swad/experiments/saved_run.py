"""A finished run, opened to look at its weights: which there are, and the images they are judged on.

Images are those of the run's own split. *Seen* are training images of the source domains, *unseen* those of the
target, as they are evaluated: not augmented. Of each domain a fixed subset is taken with the classes in proportion, the
same for every kind of weights and every run of that target and trial, so that differences are paired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from swad.algorithms.hyperparameters import fill
from swad.algorithms.registry import get_algorithm
from swad.data import benchmarks
from swad.data.domains import DataError, IntArray
from swad.data.loaders import EvalLoader
from swad.data.splits import DomainSplit, HeldOut, hold_out
from swad.models import networks
from swad.results.records import CONFIG, DONE
from swad.results.runs import find_runs
from swad.training import export
from swad.training.config import RunConfig
from swad.training.run_dir import RunError, read_json


@dataclass(frozen=True)
class Images:
    """Resident images with labels by domain, and which domains were trained on."""

    by_domain: Mapping[str, tuple[Tensor, Tensor]] = field(repr=False)
    seen: tuple[str, ...]
    unseen: tuple[str, ...]

    @property
    def groups(self) -> dict[str, list[str]]:
        """The two sides by name."""
        return {"seen": list(self.seen), "unseen": list(self.unseen)}

    def side(self, name: str) -> dict[str, tuple[Tensor, Tensor]]:
        """The images of one side."""
        return {domain: self.by_domain[domain] for domain in self.groups[name]}


@dataclass(frozen=True)
class SavedRun:
    """A finished run: its settings, its weights, its images."""

    folder: Path
    config: RunConfig
    weights: Mapping[str, str]
    """Files by name, relative to the folder."""
    data: Path | None = None
    """Where the data lies now, if not where the run found it."""

    @property
    def name(self) -> str:
        """What the run is called: target and trial."""
        return self.config.name

    @property
    def reported(self) -> tuple[str, ...]:
        """Weights that the run reports: live ones and averages, no snapshots."""
        return tuple(name for name in self.weights if not name.startswith("step-"))

    @property
    def snapshots(self) -> tuple[str, ...]:
        """Live weights that were saved on the way, by step."""
        return tuple(sorted(name for name in self.weights if name.startswith("step-")))

    def file(self, name: str) -> Path:
        """The weights file of a name: a kind the run reports, or a snapshot by its step ("2500" or "step-002500")."""
        known = f"step-{int(name):06d}" if name.isdigit() else name
        if known not in self.weights:
            there = ", ".join(self.weights)
            raise RunError(f"{self.folder} has no weights {name!r}; it has {there}")
        path = self.folder / self.weights[known]
        if not path.is_file():
            raise RunError(f"{path} is gone: put it back, or train the run again in a new folder")
        return path

    def known(self, name: str) -> str:
        """The full name of weights: the step "300" is "step-000300"."""
        return self.file(name).stem

    def state(self, name: str) -> dict[str, Tensor]:
        """Weights by name."""
        return networks.read_safetensors(self.file(name))

    def model(self, name: str, device: torch.device | str = "cpu") -> nn.Module:
        """The network with these weights, in evaluation mode."""
        return export.load_predictor(self.file(name)).model.to(device)

    def fingerprint(self, name: str) -> str:
        """Tells whether a weights file is still the one that was measured."""
        with self.file(name).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()

    @cached_property
    def held_out(self) -> HeldOut:
        """The run's data, split as it was."""
        config = self.config
        root = self.data if self.data is not None else config.data.data_dir
        dataset = benchmarks.load(
            config.data.dataset, root, check_counts=config.data.check_counts, **config.data.dataset_options
        )
        return hold_out(dataset, config.data.targets, trial=config.data.trial, three_way=config.data.three_way)

    def images(self, n: int | None, device: torch.device | str = "cpu", workers: int | None = None) -> Images:
        """Read at most `n` images of every domain (None: all) and keep them on the device."""
        sources, target = self.held_out
        where = torch.device(device)
        group = self.group or 1
        small = sources.image_spec.low_res or where.type != "cpu"
        by_domain = {}
        for part in (*sources.train, *target.full):
            some = stratified(part, n)
            # Where images are judged in groups of one domain, there are whole groups.
            some = replace(some, keys=some.keys[: max(1, len(some) // group) * group])
            batches = EvalLoader(some, sources.image_spec, 256 if small else 16, workers=workers, device=where)
            pictures, labels = zip(*batches, strict=True)
            by_domain[part.name] = (torch.cat(pictures), torch.cat(labels))
        return Images(by_domain, sources.names, target.names)

    @property
    def group(self) -> int | None:
        """Images that must stand in a batch together, for methods whose predictions depend on it (ARM, MTL)."""
        kind = get_algorithm(self.config.training.algorithm)
        return kind.eval_group_size(fill(kind.Hyperparameters, self.config.training.hyperparameters))

    def batch_size(self, device: torch.device) -> int:
        """Of a forward pass; on a CPU large activations cost more in page faults than small batches in calls."""
        usual = 256 if device.type != "cpu" or self.held_out.sources.image_spec.low_res else 16
        return self.group or usual


def stratified(part: DomainSplit, n: int | None, seed: int = 0) -> DomainSplit:
    """At most `n` images of a part, every class in proportion, the same ones every time.

    >>> from swad.data.splits import hold_out
    >>> train = hold_out(benchmarks.load("digits"), "paper").sources.train[0]
    >>> some = stratified(train, 50)
    >>> len(some), len(set(some.labels.tolist()))
    (50, 10)
    """
    if n is None or n >= len(part):
        return part
    if n < 1:
        raise DataError(f"at least 1 image of each domain is needed, got {n}")
    labels = part.labels
    classes, counts = np.unique(labels, return_counts=True)
    shares = n * counts / len(part)
    take = np.floor(shares).astype(int)
    # What rounding left over goes to the classes that lost most; the lower class of equals.
    for place in np.argsort(take - shares, kind="stable")[: n - int(take.sum())]:
        take[place] += 1
    draw = np.random.RandomState(seed)
    chosen: list[IntArray] = []
    for label, wanted in zip(classes, take, strict=True):
        chosen.append(np.sort(draw.permutation(np.flatnonzero(labels == label))[:wanted]))
    keys: IntArray = part.keys[np.sort(np.concatenate(chosen))]
    return replace(part, keys=keys)


def device_of(name: str) -> torch.device:
    """A device by name, if this machine has it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RunError(f"device must be cpu, cuda or cuda:NUMBER, got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunError(f"device is {name!r}, and torch sees no GPU: use cpu, or a torch built for your GPU")
    return device


def open_run(folder: Path | str, data: Path | str | None = None) -> SavedRun:
    """Open one finished run."""
    folder = Path(folder)
    config, done = read_json(folder / CONFIG), read_json(folder / DONE)
    if not isinstance(config, dict):
        raise RunError(f"{folder} holds no run: give a folder that `swad train` wrote")
    if not isinstance(done, dict):
        raise RunError(f"{folder} is unfinished: run the same `swad train` again to finish it")
    weights: dict[str, Any] = done.get("weights") or {}
    if not weights:
        raise RunError(f"{folder} saved no weights: train it again in a new folder")
    return SavedRun(folder, RunConfig.from_json(config, folder), weights, None if data is None else Path(data))


def open_runs(folders: Sequence[Path | str], data: Path | str | None = None) -> tuple[list[SavedRun], list[str]]:
    """Open every finished run among and below some folders; what was left out is said in a sentence each."""
    subjects: dict[Path, SavedRun] = {}
    left_out = []
    for folder in folders:
        if (Path(folder) / CONFIG).exists():
            subjects[Path(folder)] = open_run(folder, data)
            continue
        for run in find_runs(folder):
            if run.finished:
                subjects[run.path] = open_run(run.path, data)
            else:
                left_out.append(f"{run.path} is unfinished and was left out")
    if not subjects:
        what = left_out[0] if left_out else "no folder was given"
        raise RunError(f"there is no finished run to measure ({what}): finish one with `swad train`")
    return list(subjects.values()), left_out
