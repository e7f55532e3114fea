"""What a run gives: messages and records while it trains; at its end its weights, their scores, and warnings.

Only the main process writes files.
"""

from __future__ import annotations

import copy
import math
import platform
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.rule import FalseStartWarning, NeverConvergedWarning
from swad.averaging.spans import Status
from swad.gpu.cuda_graph import to_device
from swad.tensors.batch_norms import running_statistics
from swad.testbed.algorithms.base import Algorithm
from swad.testbed.data.domains import FileDomain
from swad.testbed.data.loaders import Loader
from swad.testbed.data.splits import DomainSplit, Sources, Target
from swad.testbed.results.metrics import get_metric
from swad.testbed.results.predictions import MAX_CLASSES, PREDICTIONS, Array, Part, write_predictions
from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.trackers.tracking import Tracking
from swad.testbed.training.callback import RunCallback
from swad.testbed.training.config import ResolvedConfig
from swad.testbed.training.distributed import Dist
from swad.testbed.training.evaluation import Evaluator, Score, Values, value_records
from swad.testbed.training.export import cpu_weights, model_card, save_weights
from swad.testbed.training.numerics import autocast
from swad.testbed.training.run_dir import WEIGHTS, RunDir, RunResult, disk_errors
from swad.testbed.training.state import TrainingState
from swad.util.names import snapshot_name
from swad.util.version import __version__

PASSES = 200
"""Most forward passes of an estimate of batch norms: a few ten thousand images are as good as all (Wu and Johnson,
2021)."""


# -- while it trains ------------------------------------------------------------------------------------------------


class RunOutput:
    """The output of one process of a run. `run_dir` is None in all processes but the main one."""

    def __init__(self, config: ResolvedConfig, run_dir: RunDir | None, callback: RunCallback) -> None:
        self._config, self._run_dir, self._callback = config, run_dir, callback
        self._tracking: Tracking | None = None
        self.messages: list[str] = []
        if run_dir is not None:
            run_dir.warn_with(lambda text: self.log(f"warning: {text}"))

    def log(self, text: str) -> None:
        """Log a message about how this run is computed, once, and keep it for the result."""
        if text not in self.messages:
            self.messages.append(text)
            self._callback.on_log(text)

    def start_tracking(self) -> AbstractContextManager[object]:
        """Start the requested trackers in the main process, and send them the records up to the checkpoint."""
        config = self._config
        if self._run_dir is None or not config.log:
            return nullcontext()

        def warn(name: str, reason: str) -> None:
            self.log(
                f"warning: {name} failed, so the run continues without it ({reason}); "
                f"`swad log {config.output} --to {name}` sends the records later"
            )

        settings = {name: value for section in config.to_dict().values() for name, value in section.items()}
        run = RunData(config.output, settings, (), finished=False)
        self._tracking = Tracking(run, config.log, self.records(), warn=warn, log=self.log)
        return self._tracking

    def append(self, records: Sequence[Record]) -> None:
        """Append records to those of the run, and send them to the trackers."""
        if self._run_dir is not None:
            self._run_dir.append(*records)
        if self._tracking is not None:
            self._tracking.log(records)

    def records(self) -> list[Record]:
        """Return all records of the run in the main process, none elsewhere."""
        return [] if self._run_dir is None else self._run_dir.records()

    def save_predictions(self, predictions: Predictions, classes: Sequence[str]) -> None:
        """Save what every set of weights predicts."""
        if self._run_dir is not None:
            with disk_errors(self._config.output / PREDICTIONS):
                write_predictions(self._config.output, classes, predictions.parts, predictions.outputs)

    def save_weights(
        self,
        name: str,
        weights: Mapping[str, Tensor],
        description: str,
        sources: Sources,
        step: int,
        averaged: Mapping[str, object] | None = None,
        scores: Mapping[str, object] | None = None,
    ) -> str:
        """Save weights with their model card and return the file's path in the run directory."""
        file = weights_file(name)
        if self._run_dir is not None:
            path = self._config.output / file
            card = model_card(self._config, sources, step, description, averaged, scores)
            with disk_errors(path):
                save_weights(path, weights, card)
        return file


def weights_file(name: str) -> str:
    """Return the path of a weights file in the run directory."""
    return f"{WEIGHTS}/{name}.safetensors"


# -- at its end -----------------------------------------------------------------------------------------------------


def report(
    training: TrainingState,
    evaluator: Evaluator,
    target: Target,
    output: RunOutput,
    callback: RunCallback,
    start_time: float,
) -> RunResult:
    """Evaluate and save the weights of a finished training and return the result."""
    config, sources = training.config, training.sources
    model = copy.deepcopy(training.predictor)  # the averages still follow the live model
    ranges = {name: averaged_range(average.status) for name, average in training.averages.items()}
    scores: dict[str, Values] = {}
    files: dict[str, str] = {}
    predictions = Predictions(sources, target) if config.predictions else None
    for name, description, weights in _final_weights(training):
        callback.on_stage(f"evaluating {name}")
        model.load_state_dict(weights)
        if name in training.averages and estimate_statistics(
            model, config, training.algorithm, training.loader, training.dist
        ):
            weights = cpu_weights(model)
        evaluation_start = time.perf_counter()
        final_scores = evaluator.final_scores(model, target)
        training.clock.evaluation += time.perf_counter() - evaluation_start
        scores[name] = evaluator.values(final_scores)
        output.append(value_records(config.name, training.step, scores[name], name))
        if predictions is not None:
            predictions.add(name, final_scores)
        callback.on_stage(f"saving {name}")
        files[name] = output.save_weights(
            name, weights, description, sources, training.step, ranges.get(name), scores[name]
        )
    if predictions is not None:
        output.save_predictions(predictions, sources.classes)
    for step in config.snapshots:
        if step <= training.step:
            files[snapshot_name(step)] = weights_file(snapshot_name(step))
    # The clock stays as it is: if the result cannot be written, a checkpoint adds this time to it.
    seconds = training.clock.total + time.perf_counter() - start_time
    updates = training.step + training.n_preparation
    output.append(
        [
            training.record("seconds_total", seconds),
            training.record("seconds_per_step", training.clock.steps / max(1, updates)),
            training.record("seconds_evaluation", training.clock.evaluation),
        ]
    )
    losses = {record.step: record.value for record in output.records() if record.metric == "valley_loss"}
    texts = range_warnings(training, losses, len(sources.classes))
    for text in texts:
        callback.on_log(f"warning: {text}")
    engine, pipeline, precision = training.engine.kind, config.input_pipeline, config.precision
    return RunResult(
        run_dir=config.output,
        config=config,
        steps=training.step,
        scores=scores,
        ranges=ranges,
        weights=files,
        seconds=seconds,
        warnings=tuple(texts),
        versions={"swad": __version__, "torch": torch.__version__, "python": platform.python_version()},
        notes=(f"engine {engine}, {pipeline} input pipeline, {precision}", *output.messages),
    )


class Predictions:
    """The images of the final evaluation, and what each of the reported weights predicts for them."""

    def __init__(self, sources: Sources, target: Target) -> None:
        self.parts: Sequence[Part] = [
            _part(split, part)
            for split, parts in (
                ("in", target.train),
                ("out", (*target.val, *sources.val)),
                ("test", (*target.test, *sources.test)),
            )
            for part in parts
        ]
        self.outputs: dict[str, tuple[Array, Array]] = {}

    def add(self, weights: str, scores: Mapping[str, Mapping[str, Score]]) -> None:
        """Keep the outputs in the scores of weights."""
        kept = [outputs for part in self.parts if (outputs := scores[part.domain][part.split].outputs) is not None]
        predictions, probabilities = (torch.cat(each) for each in list(zip(*kept, strict=True))[1:])
        if probabilities.shape[1] > MAX_CLASSES:
            probabilities = probabilities.amax(1)
        self.outputs[weights] = predictions.cpu().numpy(), probabilities.cpu().numpy()


def _part(split: str, part: DomainSplit) -> Part:
    domain, labels = part.domain, part.labels
    if not isinstance(domain, FileDomain):
        return Part(part.name, split, part.keys, labels)
    return Part(part.name, split, part.keys, labels, [domain.files[i] for i in part.keys], str(domain.root.resolve()))


def _final_weights(training: TrainingState) -> Iterator[tuple[str, str, dict[str, Tensor]]]:
    """Yield the name, description and tensors of all weights that are reported."""
    if training.config.report_live:
        best = training.best
        if best.weights is not None:
            metric = get_metric(training.config.select_by).label
            description = f"The weights of step {best.step}, with the highest {metric} on source validation"
            yield "best", description, best.weights
        yield "last", "The weights of the last step", cpu_weights(training.predictor)
    for name, average in training.averages.items():
        with warnings.catch_warnings():  # the result contains this warning
            warnings.simplefilter("ignore", NeverConvergedWarning)
            warnings.simplefilter("ignore", FalseStartWarning)
            yield name, f"An average of the weights along the trajectory: {name}", average.averaged_state()


def averaged_range(status: Status) -> dict[str, Any]:
    """Return the steps that an average took as plain values."""
    spans = [str(span) for span in status.spans]
    shown = ", ".join(spans if len(spans) <= 6 else [*spans[:3], "...", *spans[-2:]])
    return {
        "start_step": status.start_step,
        "end_step": status.end_step,
        "n_averaged": status.n_averaged,
        "threshold": status.threshold,
        "phase": str(status.phase),
        "reason": status.reason,
        "spans": shown,
    }


def estimate_statistics(
    model: nn.Module, config: ResolvedConfig, algorithm: Algorithm, loader: Loader, dist: Dist
) -> bool:
    """Estimate the statistics of an average's batch norms on an epoch of training images, or on its first part.

    Its weights are new, so nothing has their statistics. Returns False if those of the run are frozen, the default for
    pretrained weights, or if there are none.
    """
    if config.freeze_bn:
        return False
    epoch = math.ceil(sum(algorithm.run_info.domain_sizes) / algorithm.n_images)
    with autocast(config, dist.device):
        estimated = algorithm.estimate_statistics(model, _training_images(loader, epoch))
    if estimated:
        dist.average(running_statistics(model))
    return estimated


def _training_images(loader: Loader, epoch: int) -> Iterator[Tensor]:
    for step, inputs in loader.inputs(1, min(epoch, math.ceil(PASSES / loader.n_parts))):
        for batch in loader.parts(step, to_device(inputs, loader.device)):
            # Views follow one another in the first dimension.
            yield batch.images.flatten(0, 1) if batch.images.ndim == 5 else batch.images


# -- averages that should not be trusted ----------------------------------------------------------------------------


def too_few_evaluations(config: ResolvedConfig, training: TrainingState) -> list[str]:
    """Say before the first step which averages will not find their start, as in a short run on a large dataset."""
    steps = config.total_steps
    evaluations = sum(map(config.evaluates, range(1, steps + 1)))
    every = max(1, steps // 10)
    more_often = f" or evaluate more often: evaluate_every={every} (--evaluate-every)" if evaluations < steps else ""
    return [
        f"{name} needs {valley.n_converge} evaluations to find its start, but {steps} steps have {evaluations}: "
        f"train longer{more_often}"
        for name in training.averages
        if (valley := training.valley(name)) is not None and evaluations < valley.n_converge
    ]


def range_warnings(training: TrainingState, losses: Mapping[int, float], n_classes: int) -> list[str]:
    """Say which averages never found their start, or start before the network has learned anything.

    Args:
        training: The finished training.
        losses: The validation loss at every evaluation, by step.
        n_classes: Number of classes, which decides the loss of chance.
    """
    texts = []
    for name in training.averages:
        valley = training.valley(name)
        if valley is not None and not valley.converged:
            texts.append(
                f"the validation loss never converged for {name}, so it averages only the "
                "end of training: train longer or evaluate more often"
            )
        elif valley is not None and valley.status.warning:
            texts.append(f"{name}: {valley.status.warning}")
        elif valley is not None:
            texts += _early_start(name, training.averages[name].status.start_step, losses, n_classes)
    return texts


def _early_start(name: str, start: int | None, losses: Mapping[int, float], n_classes: int) -> list[str]:
    after = [step for step in sorted(losses) if start is not None and step >= start]
    if not after:
        return []
    texts, chance = [], math.log(n_classes)
    lowest = min(losses, key=lambda step: losses[step])
    if after[0] == min(losses) == lowest:
        texts.append(
            f"{name} starts at the first evaluation (step {start}), because the validation loss never fell below it: "
            "train longer or evaluate more often"
        )
    elif after[0] == min(losses):
        texts.append(
            f"{name} starts at the first evaluation (step {start}), but the validation loss fell later, to "
            f"{losses[lowest]:.4g} at step {lowest}: raise n_converge or evaluate less often"
        )
    if losses[after[0]] > chance:
        texts.append(
            f"{name} starts at step {start} with a validation loss of {losses[after[0]]:.4g}, not below chance "
            f"({chance:.4g}), so it averages weights that have learned nothing: train longer or raise n_converge"
        )
    return texts
