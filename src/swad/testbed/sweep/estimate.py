"""What a sweep will cost, before it starts: its time from a few measured steps, and its disk space.

For every available dataset, each algorithm makes a few steps and an evaluation on a sample of the images, on the
device that would be used, and nothing is written. A run then takes

    steps x images in a step x seconds per trained image  +  evaluated images x seconds per evaluated image.

A dataset that is not available is estimated from a measured one with the same network and image size.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from rich.filesize import decimal

from swad.testbed.algorithms.hyperparameters import fill
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.averages.segment_log import stored_bytes
from swad.testbed.data import benchmarks
from swad.testbed.data.cache import open_cache
from swad.testbed.data.domains import ArrayDomain, Domain, FileDomain
from swad.testbed.data.splits import hold_out, n_train
from swad.testbed.models import networks
from swad.testbed.sweep.plan import SweepPlan
from swad.testbed.training.config import RunConfig
from swad.testbed.training.dataset import load_dataset
from swad.testbed.training.distributed import Dist
from swad.testbed.training.evaluation import Evaluator
from swad.testbed.training.numerics import torch_settings
from swad.testbed.training.recipes import images_per_step, recipe_of
from swad.testbed.training.resolve import resolve
from swad.testbed.training.state import TrainingState
from swad.testbed.workers.local import threads_per_process
from swad.util.progress import Progress, duration

SAMPLE = 64
"""Images per domain of a measurement."""
CPU_BATCH = 4
"""Images per domain and step of a measurement on a CPU, where a step at full size would take long."""
WARM_UP, MIN_SECONDS, MAX_STEPS = 2, 0.5, 20
"""Steps before the clock starts; then it runs for at least this long, or for so many steps."""


@dataclass(frozen=True)
class Speed:
    """What was measured for one dataset and algorithm.

    Args:
        per_trained_image: Seconds.
        per_evaluated_image: Seconds.
    """

    per_trained_image: float
    per_evaluated_image: float


@dataclass(frozen=True)
class GroupEstimate:
    """The cost of the runs of one dataset and algorithm.

    Args:
        dataset: Name of the dataset.
        algorithm: Name of the algorithm.
        runs: Number of runs.
        seconds: Time of all of them, one after another; None if it is unknown.
        bytes: Disk space of all of them; None if it is unknown.
        basis: Where the time comes from: "measured", "from DATASET" or "unknown".
    """

    dataset: str
    algorithm: str
    runs: int
    seconds: float | None
    bytes: int | None
    basis: str


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
    groups = plan.groups
    speeds: dict[tuple[str, str], Speed] = {}
    measured = [name for name in groups if name[0] in at_hand]
    for number, name in enumerate(measured):
        if progress:
            progress("measuring a step of each workload", number, len(measured))
        speeds[name] = measure(groups[name][0].config.replace(device=device), processes)
    if progress and measured:
        progress("measuring a step of each workload", len(measured), len(measured))
    counts = plan.counts
    estimates = []
    for name, runs in groups.items():
        number = counts[(*name, "search")] + counts[(*name, "repeat")]
        speed, basis = _speed(name, speeds)
        # The runs that wait for a choice cost as much as those that are known, on average.
        share = number / len(runs)
        cost = _RunCost(runs[0].config, name[0] in at_hand)
        seconds = None if speed is None else share * sum(cost.seconds(run.config, speed) for run in runs)
        sizes = [cost.bytes(run.config) for run in runs]  # some runs may keep more files than others
        total = None if None in sizes else round(share * sum(filter(None, sizes)))
        estimates.append(GroupEstimate(*name, number, seconds, total, basis))
    return estimates


def _speed(name: tuple[str, str], speeds: Mapping[tuple[str, str], Speed]) -> tuple[Speed | None, str]:
    """Return the measured speed of a workload, or that of the same algorithm on images of the same kind."""
    if name in speeds:
        return speeds[name], "measured"
    dataset, algorithm = name
    for (other, same), speed in speeds.items():
        if same == algorithm and _kind(other) == _kind(dataset):
            return speed, f"from {other}"
    return None, "unknown"


def _kind(dataset: str) -> object:
    """What the speed of a network depends on."""
    try:
        spec = benchmarks.get(dataset).image_spec
    except ValueError:  # a folder of the user's own
        spec = benchmarks.get("folder").image_spec
    return spec.size, spec.low_res


# -- measuring ----------------------------------------------------------------------------------------------------


def measure(config: RunConfig, processes: int | None) -> Speed:
    """Train a few steps and evaluate once, on a sample of the images and with random weights; write nothing."""
    # Random weights last: the defaults that depend on the weights are those of the run.
    resolved = resolve(config.replace(keep_segments=False, check_counts=False))
    resolved = replace(resolved, weights="random")
    if resolved.engine == "auto":  # compiling would take longer than it is worth here
        resolved = replace(resolved, engine="graph" if resolved.device.startswith("cuda") else "eager")
    device = torch.device(resolved.device)
    if processes and device.type == "cpu" and resolved.threads is None:
        resolved = replace(resolved, threads=threads_per_process(processes))
    batch = int(resolved.hyperparameters["batch_size"])
    low_res = benchmarks.get(resolved.dataset).image_spec.low_res
    if device.type == "cpu" and not low_res:
        batch = min(batch, CPU_BATCH)
    resolved = replace(resolved, hyperparameters={**resolved.hyperparameters, "batch_size": batch})
    dataset = load_dataset(resolved)
    side = (resolved.cache_size or 256) if resolved.input_pipeline == "gpu" else None
    dataset = replace(dataset, domains=tuple(_sample(domain, side) for domain in dataset.domains))
    sources, _ = hold_out(dataset, resolved.targets, trial=resolved.trial, three_way=resolved.three_way)
    cache = open_cache(dataset, size=None) if resolved.input_pipeline == "gpu" else None
    dist = Dist(device)
    with torch_settings(resolved, device):
        training = TrainingState(resolved, sources, dist, cache, lambda line: None)
        evaluator = Evaluator(training, lambda line: None)
        per_step = _time_steps(training)
        n_validated = sum(len(part) for part in sources.val)
        evaluator.validation_scores(training.predictor)
        start = time.perf_counter()
        evaluator.validation_scores(training.predictor)
        per_evaluation = time.perf_counter() - start
    return Speed(per_step / (batch * len(sources.names)), per_evaluation / n_validated)


def _time_steps(training: TrainingState) -> float:
    """Return the seconds of a step."""
    start, first = 0.0, WARM_UP
    for step, inputs in training.loader.inputs(1, WARM_UP + MAX_STEPS):
        training.train_step(step, inputs)
        if step < first:
            continue
        training.pop_train_loss()  # waits for the device
        now = time.perf_counter()
        if step == first:
            start = now
        elif now - start >= MIN_SECONDS:
            return (now - start) / (step - first)
    return (time.perf_counter() - start) / MAX_STEPS


def _sample(domain: Domain, side: int | None) -> Domain:
    """Return a domain with some of its images, decoded to this side if they would come from the image cache."""
    rows = np.linspace(0, len(domain) - 1, min(SAMPLE, len(domain))).astype(int)  # all classes: they are in order
    labels = domain.labels[rows]
    if isinstance(domain, ArrayDomain):
        return ArrayDomain(domain.name, labels, domain.images[rows])
    assert isinstance(domain, FileDomain)
    if side is None:
        return FileDomain(domain.name, labels, domain.root, tuple(domain.files[row] for row in rows))
    images = np.stack([np.asarray(domain.image(int(row)).resize((side, side))) for row in rows])
    return ArrayDomain(domain.name, labels, images)


# -- costs of one run ---------------------------------------------------------------------------------------------


class _RunCost:
    """The time and the disk space of a run of one dataset and algorithm. What runs share is looked up once.

    Args:
        config: Settings of one of them.
        at_hand: Whether the dataset can be read.
    """

    def __init__(self, config: RunConfig, at_hand: bool) -> None:
        self._benchmark = benchmark = benchmarks.get(config.dataset)
        self._counts: Mapping[str, int] = benchmark.counts
        self._n_classes = benchmark.n_classes
        if at_hand and (not self._counts or self._n_classes is None):  # a folder of the user's own, or the digits
            dataset = benchmarks.load(benchmark.name, config.data_dir, check_counts=False)
            self._counts = {domain.name: len(domain) for domain in dataset.domains}
            self._n_classes = len(dataset.classes)

    def seconds(self, config: RunConfig, speed: Speed) -> float:
        """Return the time of a run."""
        targets = config.targets
        sources = [n for name, n in self._counts.items() if name not in targets]
        target = sum(n for name, n in self._counts.items() if name in targets)
        shares = 2 if config.three_way else 1  # validation and test
        validation = [(n - n_train(n, three_way=config.three_way)) // shares for n in sources]
        seen = [min(n, config.validation_subsample or n) for n in validation]
        steps, n_evaluations = self._steps(config)
        evaluated = n_evaluations * sum(seen) + _n_weights(config) * (sum(validation) + target)
        if config.target_every_evaluation:
            evaluated += n_evaluations * target
        trained = float((steps + _preparation(config, steps)) * images_per_step(config, len(sources)))
        return trained * speed.per_trained_image + evaluated * speed.per_evaluated_image

    def bytes(self, config: RunConfig) -> int | None:
        """Return the bytes of a finished run at most: models, kept segments, and records with about 100 bytes each."""
        spec = self._benchmark.image_spec
        network = config.network or (networks.SMALL if spec.low_res else networks.DEFAULT)
        model = None
        if self._n_classes is not None:
            model = _model_bytes(network, self._n_classes, spec.channels, config.image_size or spec.size)
        if model is None:
            return None
        _, n_evaluations = self._steps(config)
        models = _n_weights(config) + len(config.snapshots)
        segments = stored_bytes(model, n_evaluations)[1] if config.keep_segments else 0
        records = n_evaluations * (2 * max(1, len(self._counts)) + 4) * 100
        return models * model + segments + records

    def _steps(self, config: RunConfig) -> tuple[int, int]:
        """Return the number of steps and of evaluations."""
        defaults = self._benchmark.defaults
        sources = [n for name, n in self._counts.items() if name not in config.targets]
        steps = recipe_of(config).steps(config, [n_train(n, three_way=config.three_way) for n in sources])
        every = config.evaluate_every or defaults.evaluate_every_in(steps)
        return steps, -(-steps // every) + config.eval_offset


def _preparation(config: RunConfig, steps: int) -> int:
    """Return the number of updates before a run's first step."""
    algorithm = get_algorithm(config.algorithm)
    return algorithm.preparation_steps(fill(algorithm.Hyperparameters, config.hyperparameters), steps)


def _n_weights(config: RunConfig) -> int:
    """Return the number of models that a run reports and saves."""
    return len(config.averages) + 2 * config.report_live


@cache
def _model_bytes(network: str, n_classes: int, channels: int, size: int) -> int | None:
    """Return the size of a network; None if it cannot be built with these images, which training would report."""
    try:
        with torch.device("meta"):  # no memory is needed
            model = networks.build(network, n_classes, channels=channels, image_size=size)
    except (networks.NetworkError, ImportError, RuntimeError, TypeError, NotImplementedError):
        return None
    return int(sum(value.numel() * value.element_size() for value in model.state_dict().values()))


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
