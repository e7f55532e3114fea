"""What a sweep will cost, before it starts: its time, by a short training on some of the images, and its disk space.

For every dataset that is at hand, each algorithm is trained for a few steps on the device that would be used, in a
temporary directory. A run then takes

    steps x images in a step x seconds per trained image  +  evaluated images x seconds per evaluated image.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from rich.filesize import decimal

from swad.testbed.algorithms.hyperparameters import fill
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.averages.segment_log import stored_bytes
from swad.testbed.data import benchmarks
from swad.testbed.data.domains import ArrayDomain, FileDomain
from swad.testbed.data.shards import ShardDomain
from swad.testbed.data.splits import hold_out, n_train
from swad.testbed.models import networks
from swad.testbed.sweep.plan import SweepPlan
from swad.testbed.training.callback import RunCallback
from swad.testbed.training.config import ResolvedConfig, RunConfig
from swad.testbed.training.dataset import load_dataset
from swad.testbed.training.loop import RunInterrupted, train
from swad.testbed.training.recipes import images_per_step, recipe_of
from swad.testbed.training.resolve import resolve
from swad.testbed.workers.local import threads_per_process
from swad.util.progress import Progress, duration

SAMPLE = 64
"""Images per domain of a measurement."""
STEPS = 10
"""Steps before each of its two evaluations; the first ones warm up."""
CPU_STEPS, CPU_BATCH = 3, 4
"""The same on a CPU, and images per domain and step: steps of full size would take long."""


@dataclass(frozen=True)
class Speed:
    """Seconds for each trained and for each evaluated image of one dataset and algorithm."""

    per_trained_image: float
    per_evaluated_image: float


@dataclass(frozen=True)
class GroupEstimate:
    """The cost of the runs of one dataset and algorithm.

    Args:
        dataset: Name of the dataset.
        algorithm: Name of the algorithm.
        runs: Number of runs.
        seconds: Time of all of them, one after another; None if the dataset is not at hand.
        bytes: Disk space of all of them; None if it is unknown.
    """

    dataset: str
    algorithm: str
    runs: int
    seconds: float | None
    bytes: int | None


def estimate(
    plan: SweepPlan,
    at_hand: Collection[str],
    device: str,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[GroupEstimate]:
    """Estimate the cost of a plan by dataset and algorithm.

    Args:
        plan: The runs.
        at_hand: Names in the plan of the datasets that can be read.
        device: Device to measure on.
        processes: Processes that train at a time and share the CPU cores, if it is known.
        progress: Called before every measurement.
    """
    counts, estimates = plan.counts, []
    for index, (name, runs) in enumerate(plan.groups.items()):
        if progress:
            progress("measuring a step of each workload", index, len(plan.groups))
        number, measured = counts[(*name, "search")] + counts[(*name, "repeat")], name[0] in at_hand
        images, n_classes = _contents(runs[0].config, measured)
        # The runs that wait for a choice cost as much as those that are known, on average.
        share, seconds = number / len(runs), None
        if measured:
            speed = measure(runs[0].config.replace(device=device), processes)
            seconds = share * sum(run_seconds(run.config, images, speed) for run in runs)
        sizes = [run_bytes(run.config, images, n_classes) for run in runs]  # some runs may keep more files than others
        total = None if None in sizes else round(share * sum(filter(None, sizes)))
        estimates.append(GroupEstimate(*name, number, seconds, total))
    if progress:
        progress("measuring a step of each workload", len(plan.groups), len(plan.groups))
    return estimates


def describe_costs(estimates: Sequence[GroupEstimate], slots: int | None, processes: int = 1) -> str:
    """State the time and the disk space of all runs, as far as they are known.

    Args:
        estimates: The costs in one process.
        slots: How many runs train at a time, if it is known.
        processes: How many processes train a run together. What they send each other takes time too.
    """
    seconds = sum(group.seconds or 0.0 for group in estimates)
    size = sum(group.bytes or 0 for group in estimates)
    complete = all(group.seconds is not None and group.bytes is not None for group in estimates)
    limit = "about" if complete else "at least"
    one, best, each = (" in one process", "at best ", f" in {processes} processes each") if processes > 1 else ("",) * 3
    at_a_time = f", {best}{duration(seconds / slots / processes)} with {slots} at a time{each}" if slots else ""
    return f"{limit} {duration(seconds)} of training{one}{at_a_time}; {limit} {decimal(size)} on disk"


# -- measuring ----------------------------------------------------------------------------------------------------


class _Measured(Exception):  # noqa: N818 - nothing went wrong
    """Ends a training that was timed."""


class _Timer(RunCallback):
    """Times the steps and the evaluations of a training, and ends it after the second evaluation."""

    def __init__(self) -> None:
        self.step_ends: list[float] = []
        self.evaluations: list[float] = []

    def on_step(self, step: int, loss: torch.Tensor) -> None:
        """Note when a step ended."""
        loss.item()  # waits for the device
        self.step_ends.append(time.perf_counter())

    def on_evaluation(self, step: int, *scores: object) -> None:
        """Note how long an evaluation took."""
        self.evaluations.append(time.perf_counter() - self.step_ends[-1])
        if len(self.evaluations) == 2:
            raise _Measured

    @property
    def per_step(self) -> float:
        """Seconds of a step between both evaluations; those before the first warm up."""
        second = self.step_ends[len(self.step_ends) // 2 :]
        return (second[-1] - second[0]) / (len(second) - 1)


def measure(config: RunConfig, processes: int | None) -> Speed:
    """Train on a sample of the images, with random weights, until two evaluations are made; keep nothing."""
    resolved = resolve(config.replace(check_counts=False))
    on_cpu = resolved.device == "cpu"
    hyperparameters = dict(resolved.hyperparameters)
    every = CPU_STEPS if on_cpu else STEPS
    if on_cpu and not benchmarks.get(resolved.dataset).image_spec.low_res:
        hyperparameters["batch_size"] = min(hyperparameters["batch_size"], CPU_BATCH)
    with TemporaryDirectory(prefix="swad-estimate-") as folder:
        run = replace(
            _sampled(resolved, Path(folder) / "images"),
            output=Path(folder) / "run",
            cache=Path(folder) / "cache",
            hyperparameters=hyperparameters,
            # All other defaults are those of the run, also where they depend on its weights.
            weights="random",
            steps=2 * every,
            evaluate_every=every,
            averages=("swad:nonfinite=skip",),  # whose sums cost as much as those of several
            metrics=(),
            select_by="accuracy",
            snapshots=(),
            keep_segments=False,
            target_every_evaluation=False,
            validation_subsample=None,
            log=(),
        )
        if run.engine == "auto":  # compiling would take longer than it is worth here
            run = replace(run, engine="eager" if on_cpu else "graph")
        if processes and on_cpu and run.threads is None:
            run = replace(run, threads=threads_per_process(processes))
        sources, _ = hold_out(load_dataset(run), run.targets, trial=run.trial, three_way=run.three_way)
        timer = _Timer()
        try:
            train(run, callback=timer)
        except _Measured:
            pass
        except RunInterrupted:  # its advice is to resume the run
            raise KeyboardInterrupt from None
    trained = images_per_step(replace(resolved, hyperparameters=hyperparameters), len(sources.names))
    return Speed(timer.per_step / trained, timer.evaluations[-1] / sum(map(len, sources.val)))


def _sampled(config: ResolvedConfig, folder: Path) -> ResolvedConfig:
    """Write some images of every domain to a folder, and return the settings with that folder as the dataset."""
    dataset = load_dataset(config)
    for number, domain in enumerate(dataset.domains):
        if isinstance(domain, ArrayDomain):  # the whole dataset is in memory
            return config
        assert isinstance(domain, FileDomain | ShardDomain)
        rows = np.linspace(0, len(domain) - 1, min(SAMPLE, len(domain))).astype(int)  # all classes: they are in order
        for row in map(int, rows):
            suffix = domain.path(row).suffix if isinstance(domain, FileDomain) else ".jpg"
            path = folder / str(number) / str(domain.labels[row]) / f"{row}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(domain.content(row))
    targets = tuple(str(dataset.index(name)) for name in config.targets)
    return replace(config, dataset="folder", dataset_options={}, data_dir=folder, target=targets)


# -- costs of one run ---------------------------------------------------------------------------------------------


def _contents(config: RunConfig, at_hand: bool) -> tuple[Mapping[str, int], int | None]:
    """Return the number of images of every domain and of classes, as far as they are known."""
    benchmark = benchmarks.get(config.dataset)
    if not at_hand or (benchmark.counts and benchmark.n_classes is not None):
        return benchmark.counts, benchmark.n_classes
    dataset = benchmarks.load(benchmark.name, config.data_dir, check_counts=False)  # a folder of your own, or digits
    return {domain.name: len(domain) for domain in dataset.domains}, len(dataset.classes)


def _schedule(config: RunConfig, sources: Sequence[int]) -> tuple[int, int]:
    """Return the number of steps and of evaluations of a run on domains with so many images."""
    steps = recipe_of(config).steps(config, [n_train(n, three_way=config.three_way) for n in sources])
    every = config.evaluate_every or benchmarks.get(config.dataset).defaults.evaluate_every_in(steps)
    return steps, -(-steps // every) + config.eval_offset


def _n_weights(config: RunConfig) -> int:
    """Return the number of models that a run reports and saves."""
    return len(config.averages) + 2 * config.report_live


def run_seconds(config: RunConfig, images: Mapping[str, int], speed: Speed) -> float:
    """Return the time of a run on domains with so many images."""
    sources = [n for name, n in images.items() if name not in config.targets]
    target = sum(images.values()) - sum(sources)
    shares = 2 if config.three_way else 1  # validation and test
    validation = [(n - n_train(n, three_way=config.three_way)) // shares for n in sources]
    seen = [min(n, config.validation_subsample or n) for n in validation]
    steps, n_evaluations = _schedule(config, sources)
    evaluated = n_evaluations * sum(seen) + _n_weights(config) * (sum(validation) + target)
    if config.target_every_evaluation:
        evaluated += n_evaluations * target
    algorithm = get_algorithm(config.algorithm)
    steps += algorithm.preparation_steps(fill(algorithm.Hyperparameters, config.hyperparameters), steps)
    trained = steps * images_per_step(config, len(sources))
    return trained * speed.per_trained_image + evaluated * speed.per_evaluated_image


def run_bytes(config: RunConfig, images: Mapping[str, int], n_classes: int | None) -> int | None:
    """Return the bytes of a finished run at most: models, kept segments, and records with about 100 bytes each."""
    spec = benchmarks.get(config.dataset).image_spec
    network = config.network or (networks.SMALL if spec.low_res else networks.DEFAULT)
    if n_classes is None:
        return None
    model = _model_bytes(network, n_classes, spec.channels, config.image_size or spec.size)
    if model is None:
        return None
    _, n_evaluations = _schedule(config, [n for name, n in images.items() if name not in config.targets])
    segments = stored_bytes(model, n_evaluations)[1] if config.keep_segments else 0
    records = n_evaluations * (2 * max(1, len(images)) + 4) * 100
    return (_n_weights(config) + len(config.snapshots)) * model + segments + records


@cache
def _model_bytes(network: str, n_classes: int, channels: int, size: int) -> int | None:
    """Return the size of a network; None if it cannot be built with these images, which training would report."""
    try:
        with torch.device("meta"):  # no memory is needed
            model = networks.build(network, n_classes, channels=channels, image_size=size)
    except (networks.NetworkError, ImportError, RuntimeError, TypeError, NotImplementedError):
        return None
    return int(sum(value.numel() * value.element_size() for value in model.state_dict().values()))
