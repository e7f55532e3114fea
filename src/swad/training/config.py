"""One run's settings: typed, documented field by field, checked together, written beside the results."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from swad.algorithms.hyperparameters import Hyperparameters, fill
from swad.algorithms.registry import AlgorithmError, canonical_name, get_algorithm
from swad.averaging import registry
from swad.data import benchmarks
from swad.data.cache_build import DEFAULT_SIZE as DEFAULT_CACHE_SIZE
from swad.data.domains import DataError
from swad.models.networks import DEFAULT, LARGEST, SMALL, SMALLEST
from swad.results.records import CONFIG

ELSEWHERE = frozenset({"output"})
"""Fields that are not written: a run is wherever its folder lies."""
FREE = frozenset({"workers", "device", "engine", "cache", "checkpoint_every", "tensorboard", "data"})
"""Fields that may change when a run goes on: they say how and where it is computed, not what."""

LARGEST_USUAL_CACHE = 32e9
"""Bytes of decoded images that a run makes unasked."""


class ConfigError(ValueError):
    """Settings that cannot be run; the message has one line for each fault."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems) if len(problems) == 1 else "\n".join(f"- {one}" for one in problems))


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes. What is left None takes the dataset's default.

    >>> config = RunConfig("digits", "paper", "runs/paper-0").resolved()
    >>> config.network, config.steps == benchmarks.get("digits").defaults.steps
    ('small', True)
    """

    dataset: str
    """A dataset's name, as `swad datasets` lists it; "folder" for one's own."""
    target: str | tuple[str, ...]
    """The domain held out; several for leave-one-domain-out selection."""
    output: Path
    """The run's folder. One that holds an unfinished run of the same settings goes on with it."""
    data: Path | None = None
    """Where the dataset lies: its folder, or the folder above it."""
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    """Options that the dataset's file names."""
    check_counts: bool = True
    """Refuse a benchmark with other than its published number of images."""
    trial: int = 0
    """Which train-validation split; 0, 1 and 2 in the protocol."""
    seed: int | None = None
    """Of batches, augmentation, noise and first weights. None: derived from dataset, algorithm, target and trial."""
    split: Literal["80/20", "60/20/20"] = "80/20"
    """Training and validation, or training, validation and test (the paper's Tables 3 and 5)."""

    algorithm: str = "erm"
    """An algorithm's name."""
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    """Of the algorithm: lr, batch_size (images of every source domain in a step), weight_decay, dropout, its own."""
    clip: float | None = None
    """Largest norm of the gradient; longer ones are cut. None: never."""

    network: str | None = None
    """A timm name, or "small". None: "small" for small images, else ResNet-50."""
    weights: str | None = None
    """Where the network starts: "pretrained", "random" or a safetensors file. None: pretrained; small: random."""
    freeze_bn: bool = True
    """Keep the batch norms' statistics as they came, and train their scale and shift."""

    steps: int | None = None
    """Updates."""
    evaluate_every: int | None = None
    """Updates between two evaluations; the last update is evaluated in any case."""
    schedule: Literal["ours", "published"] = "ours"
    """ours: T updates, evaluations after K, 2K, ..., T. published: T + 1 updates, after 1, K + 1, ..., T + 1."""
    lr_schedule: Literal["constant", "cyclic"] = "constant"
    """cyclic: in the last 20 % the rate falls to a twentieth over and over, in cycles of 2 % of training (our
    choice where the paper says nothing); SWA takes the weights at the low ends."""
    averages: tuple[str, ...] = ("swad",)
    """Averages that ride along, as `swad.averaging.registry` reads them."""
    erm: bool = True
    """Also keep the live weights at the best validation accuracy (best) and at the end (last)."""
    early_stop: bool = True
    """Stop when every average is complete. With `erm`, snapshots to come, or averages that end with training,
    nothing is ever stopped early."""

    input_pipeline: Literal["torchvision", "gpu"] | None = None
    """torchvision: worker processes decode and augment every image on the CPU, as published. gpu: images are decoded
    once into a cache and augmented in batches on the training device: the same distributions, other draws, no rounding
    between operations, and images that differ from the cache's size are resized first. Low-resolution images are never
    augmented, so they always use torchvision. None: gpu on a GPU unless the cache would exceed 32 GB (DomainNet), else
    torchvision."""
    cache: Path | None = None
    """Where decoded images are kept. None: $SWAD_CACHE, or ~/.cache/swad/images."""
    cache_size: int | None = None
    """Rows and columns they are kept at. None: as they are where all are alike and at most 256, else 256."""
    precision: Literal["fp32", "bf16"] | None = None
    """Of the forward pass; weights, sums and averages are always fp32. None: bf16 on a GPU that has it; else, and for
    small images, fp32."""
    engine: Literal["auto", "eager", "graph", "compile"] = "auto"
    """How a step is computed: call by call, as one CUDA graph, or that with the network compiled. auto: on a GPU a
    graph, compiled where the run is long enough to gain by it; eager elsewhere."""
    device: str = "cpu"
    """cpu, cuda or cuda:1."""
    deterministic: bool = False
    """Ask for bit-equal results on a GPU too, at some cost in time. The CPU always gives them."""
    workers: int | None = None
    """Processes that read images. None: one for each core, at most 8."""
    threads: int | None = None
    """Threads of one process on the CPU; the last bits depend on it. None: 1 for the small network, which gains
    little from more and loses much where cores are shared; else what torch chooses."""

    validation_subsample: int | None = None
    """Validate on so many images of every source domain while training: cheaper, and a noisier valley. What is
    measured at the end is measured on all."""
    subsample_check: bool = True
    """With a subsample, validate on all images as well and follow a second valley by that loss, recorded as
    swad@full: shows what the subsample does to the averaged range, and costs what it saves."""
    augment_validation: bool = False
    """Augment source validation as DomainBed does, always in the same way."""
    target_every_evaluation: bool = False
    """Measure the target at every evaluation (for the oracle's best step), not only at the end."""

    snapshots: tuple[int, ...] = ()
    """Updates after which the live weights are saved."""
    keep_segments: bool = False
    """Keep the mean weights of every segment, for choices made later: one model-sized file an evaluation."""
    checkpoint_every: int | None = None
    """Least updates between two checkpoints, which are taken at evaluations. None: once a minute."""
    tensorboard: bool = False
    """Write the records for TensorBoard too, at the end."""

    def __post_init__(self) -> None:
        # JSON and command lines give lists and strings; inside there is one form.
        names = (self.target,) if isinstance(self.target, str) else tuple(self.target)
        object.__setattr__(self, "target", names[0] if len(names) == 1 else names)
        object.__setattr__(self, "output", Path(self.output))
        # The same folder by whatever name, from wherever a command is given.
        object.__setattr__(self, "data", None if self.data is None else Path(os.path.abspath(self.data)))
        object.__setattr__(self, "cache", None if self.cache is None else Path(self.cache))
        object.__setattr__(self, "averages", tuple(self.averages))
        object.__setattr__(self, "snapshots", tuple(sorted(self.snapshots)))
        object.__setattr__(self, "hyperparameters", dict(self.hyperparameters))
        object.__setattr__(self, "dataset_options", dict(self.dataset_options))

    # -- what follows from the fields -----------------------------------------------------------------------------

    @property
    def targets(self) -> tuple[str, ...]:
        """The domains held out."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @property
    def name(self) -> str:
        """What records call the run."""
        return f"{'+'.join(self.targets)}-{self.trial}"

    @property
    def total(self) -> int:
        """Updates a whole run makes."""
        assert self.steps is not None
        return self.steps + (self.schedule == "published")

    @property
    def cycle(self) -> int | None:
        """Updates of one cycle of the learning rate, where there is one."""
        assert self.steps is not None
        return max(1, self.steps // 50) if self.lr_schedule == "cyclic" else None

    @property
    def plan(self) -> registry.Plan:
        """What the averages' windows follow from."""
        assert self.steps is not None
        assert self.evaluate_every is not None
        ratio = benchmarks.get(self.dataset).defaults.tolerance_ratio
        return registry.Plan(self.steps, self.evaluate_every, ratio, int(self.schedule == "published"), self.cycle)

    def evaluates(self, step: int) -> bool:
        """Whether update `step` is followed by an evaluation."""
        assert self.evaluate_every is not None
        if step == self.total:
            return True
        late = self.schedule == "published"
        return step % self.evaluate_every == (1 % self.evaluate_every if late else 0)

    # -- checking and filling -------------------------------------------------------------------------------------

    def resolved(self) -> RunConfig:
        """The same with every default filled in; all faults are reported together."""
        problems = self.problems()
        if problems:
            raise ConfigError(problems)
        benchmark = benchmarks.get(self.dataset)
        kind = get_algorithm(self.algorithm)
        defaults = benchmark.defaults
        usual, own = Hyperparameters(), kind.Hyperparameters()
        filled: dict[str, Any] = {
            name: getattr(defaults, name)
            for name in ("lr", "batch_size")
            # A method that wants another has its reasons, which DomainBed does not hear where images are small.
            if benchmark.image_spec.low_res or getattr(own, name) == getattr(usual, name)
        } | dict(self.hyperparameters)
        begun = self._begun()  # a run goes on as it began, also on a machine whose defaults are others
        network = self.network or (SMALL if benchmark.image_spec.low_res else DEFAULT)
        complete = dataclasses.replace(
            self,
            dataset=benchmark.name,
            algorithm=canonical_name(self.algorithm),
            hyperparameters=dataclasses.asdict(kind.Hyperparameters(**filled)),
            network=network,
            weights=self.weights or ("random" if network == SMALL else "pretrained"),
            threads=self.threads or (1 if network == SMALL else None),
            input_pipeline=self._input_pipeline(benchmark, begun.get("input_pipeline")),
            precision=self.precision or begun.get("precision") or self._usual_precision(benchmark),
            steps=self.steps or defaults.steps,
            evaluate_every=self.evaluate_every or min(defaults.evaluate_every, self.steps or defaults.steps),
        )
        seed = complete.seed if complete.seed is not None else complete._derived_seed()
        return dataclasses.replace(complete, seed=seed)

    def remarks(self, complete: RunConfig) -> list[str]:
        """What `resolved`, which gave `complete`, made of these settings that may not be expected, one line each."""
        benchmark = benchmarks.get(self.dataset)
        if complete.input_pipeline == "gpu":
            return []
        found = []
        on_gpu = self.device.startswith("cuda") and not benchmark.image_spec.low_res
        if on_gpu and self.input_pipeline is None and not self._begun():
            size, most = self._cache_bytes(benchmark) / 1e9, LARGEST_USUAL_CACHE / 1e9
            found.append(
                f"using the torchvision input pipeline: the cache of decoded images would take {size:,.0f} GB, more "
                f"than the default limit of {most:,.0f} GB; pass --input-pipeline gpu to build it"
            )
        given = {"--cache": self.cache, "--cache-size": self.cache_size}
        if unused := [name for name, value in given.items() if value]:
            found.append(
                f"{', '.join(unused)}: ignored, because the torchvision input pipeline uses no image cache"
                + ("" if benchmark.image_spec.low_res else "; pass --input-pipeline gpu to use one")
            )
        return found

    def problems(self) -> list[str]:
        """Everything wrong with the settings that can be known without reading data, one sentence each."""
        found: list[str] = []

        def require(good: bool, rule: str, got: object) -> None:
            if not good:
                found.append(f"{rule}, got {got!r}")

        def choice(name: str, *choices: str) -> None:
            require(getattr(self, name) in choices, f"{name} must be one of {', '.join(choices)}", getattr(self, name))

        def count(name: str, least: int = 1) -> None:
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            good = value is None or (whole and value >= least)
            require(good, f"{name} must be a whole number from {least} on", value)

        for name in ("steps", "evaluate_every", "validation_subsample", "checkpoint_every", "threads"):
            count(name)
        for name in ("trial", "seed", "workers"):
            count(name, 0)
        choice("split", "80/20", "60/20/20")
        choice("schedule", "ours", "published")
        choice("lr_schedule", "constant", "cyclic")
        choice("engine", "auto", "eager", "graph", "compile")
        if self.precision is not None:
            choice("precision", "fp32", "bf16")
        if self.input_pipeline is not None:
            choice("input_pipeline", "torchvision", "gpu")
        require(self.clip is None or 0 < self.clip < math.inf, "clip must be a number above 0", self.clip)
        try:
            benchmark = benchmarks.get(self.dataset)
        except DataError as error:
            found.append(str(error))
            benchmark = None
        if benchmark is not None and benchmark.domains:
            unknown = [name for name in self.targets if name not in benchmark.domains]
            require(not unknown, f"the target must be one of {', '.join(benchmark.domains)}", ", ".join(unknown))
            left = [name for name in benchmark.domains if name not in self.targets]
            require(bool(left), "at least one domain must be left to train on", "+".join(self.targets))
            if left and (need := self._domains_needed()) > len(left):
                found.append(f"{self.algorithm} needs {need} source domains, got {', '.join(left)}: hold out fewer")
        if benchmark is not None:
            unknown = sorted(set(self.dataset_options) - set(benchmark.options))
            takes = ", ".join(sorted(benchmark.options)) or "none"
            require(not unknown, f"dataset {benchmark.name} takes the options {takes}", ", ".join(unknown))
            require(
                benchmark.kind == "embedded" or self.data is not None,
                f"dataset {benchmark.name} needs the folder it lies in: set data (--data)",
                None,
            )
            size = benchmark.image_spec.size
            require(
                self.network != SMALL or SMALLEST <= size <= LARGEST,
                f"the network {SMALL} takes images of {SMALLEST} to {LARGEST} pixels, not the {size} of "
                f"{benchmark.name}: choose a network of timm",
                self.network,
            )
        found += self._algorithm_problems(small=benchmark is not None and benchmark.image_spec.low_res)
        steps = self.steps or (benchmark.defaults.steps if benchmark else None)
        every = self.evaluate_every or (benchmark.defaults.evaluate_every if benchmark else None)
        if isinstance(steps, int) and isinstance(every, int) and not any("steps" in one for one in found):
            if self.evaluate_every is not None:
                require(every <= steps, f"evaluate_every must not exceed the {steps} steps", every)
            good = all(isinstance(one, int) and 1 <= one <= steps + 1 for one in self.snapshots)
            require(good, f"snapshots must lie between 1 and {steps} steps", self.snapshots)
            every = min(every, steps)
            offset = int(self.schedule == "published")
            cycle = max(1, steps // 50) if self.lr_schedule == "cyclic" else None
            found += registry.problems(self.averages, registry.Plan(steps, every, 0.3, offset, cycle))
        else:
            found += registry.problems(self.averages, None)
        require(self.erm or bool(self.averages), "with erm off there must be an average to train for", self.averages)
        if self.weights not in (None, "pretrained", "random"):
            found_file = Path(str(self.weights)).is_file()
            require(found_file, "weights must be pretrained, random or an existing file", self.weights)
        if self.tensorboard and importlib.util.find_spec("tensorboard") is None:
            found.append("tensorboard is not installed: pip install tensorboard, or leave it off")
        found += self._device_problems()
        return found

    def _algorithm_problems(self, small: bool) -> list[str]:
        try:
            kind = get_algorithm(self.algorithm)
            filled = fill(kind.Hyperparameters, self.hyperparameters)
        except (AlgorithmError, ValueError) as error:
            return [str(error)]
        found = filled.problems() or (filled.problems_on_small_images() if small else [])
        if not found and filled.batch_size < kind.min_per_domain:
            found.append(
                f"{self.algorithm} needs a batch_size of {kind.min_per_domain} or more, got {filled.batch_size}"
            )
        return found

    def _domains_needed(self) -> int:
        try:
            return get_algorithm(self.algorithm).min_domains
        except AlgorithmError:  # told elsewhere
            return 1

    def _device_problems(self) -> list[str]:
        import torch

        try:
            kind = torch.device(self.device).type
        except (RuntimeError, TypeError):
            return [f"device must be cpu, cuda or cuda:NUMBER, got {self.device!r}"]
        if kind == "cuda" and not torch.cuda.is_available():
            return [f"device is {self.device!r}, and torch sees no GPU: use cpu, or a torch built for your GPU"]
        return []

    def _begun(self) -> dict[str, Any]:
        """The settings of a run in the output folder; none where there is none, or one that measured nothing."""
        from swad.training.run_dir import has_records

        if not has_records(self.output):
            return {}
        try:
            there = json.loads((self.output / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return there if isinstance(there, dict) else {}

    def _input_pipeline(self, benchmark: benchmarks.Benchmark, begun: str | None) -> Literal["torchvision", "gpu"]:
        if benchmark.image_spec.low_res:
            return "torchvision"
        if self.input_pipeline or begun:
            return self.input_pipeline or begun  # type: ignore[return-value]
        if not self.device.startswith("cuda"):
            return "torchvision"
        return "gpu" if self._cache_bytes(benchmark) <= LARGEST_USUAL_CACHE else "torchvision"

    def _cache_bytes(self, benchmark: benchmarks.Benchmark) -> int:
        n = benchmark.total if benchmark.total is not None else _count_files(self.data)
        side = self.cache_size or DEFAULT_CACHE_SIZE
        return n * side * side * 3

    def _usual_precision(self, benchmark: benchmarks.Benchmark) -> Literal["fp32", "bf16"]:
        import torch

        if benchmark.image_spec.low_res or not self.device.startswith("cuda"):
            return "fp32"
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"

    def _derived_seed(self) -> int:
        text = json.dumps([self.dataset, self.algorithm, self.targets, self.trial])
        return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16) % 2**31

    # -- as JSON --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The settings as plain values; the folder is left out, since a run is wherever its folder lies."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ELSEWHERE}
        for name in ("data", "cache"):
            plain[name] = None if plain[name] is None else str(plain[name])
        for name in ("averages", "snapshots"):
            plain[name] = list(plain[name])
        plain["target"] = self.target if isinstance(self.target, str) else list(self.target)
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], output: Path | str) -> RunConfig:
        """Read settings back; `output` is the folder they lie in."""
        known = {one.name for one in dataclasses.fields(cls)}
        unknown = sorted(set(plain) - known)
        if unknown:
            raise ConfigError([f"unknown settings {', '.join(unknown)}: written by another version"])
        return cls(**{**plain, "output": Path(output)})

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Where `other`, as JSON, would compute something else: "lr 0.001 there, 0.01 here"."""
        # A setting that came later had its default then.
        usual = {one.name: one.default for one in dataclasses.fields(self) if one.default is not dataclasses.MISSING}
        mine = json.loads(json.dumps(self.to_json()))
        theirs = {name: usual.get(name) for name in mine} | dict(other)
        found = []
        for name in sorted(set(mine) | set(theirs)):
            here, there = mine.get(name), theirs.get(name)
            if name == "data" and there is not None:
                there = os.path.abspath(there)
            # Under the name "folder" other data lies elsewhere.
            if here == there or (name in FREE and not (name == "data" and self.dataset == "folder")):
                continue
            if isinstance(here, dict) and isinstance(there, dict):
                found += [
                    f"{key} {there.get(key)!r} there, {here.get(key)!r} here"
                    for key in sorted(set(here) | set(there))
                    if here.get(key) != there.get(key)
                ]
            else:
                found.append(f"{name} {there!r} there, {here!r} here")
        return found


@cache
def _count_files(folder: Path | None) -> int:
    return 0 if folder is None else sum(len(files) for _, _, files in os.walk(folder))
