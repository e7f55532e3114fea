"""The end of a run: evaluate and save all weights that are reported, and say how the run went."""

from __future__ import annotations

import copy
import platform
import time
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from swad.averaging.rule import FalseStartWarning, NeverConvergedWarning
from swad.testbed.data.splits import Target
from swad.testbed.training.batch_norms import estimate_statistics
from swad.testbed.training.callback import RunCallback
from swad.testbed.training.evaluation import Evaluator, score_records
from swad.testbed.training.export import cpu_weights
from swad.testbed.training.output import RunOutput, weights_file
from swad.testbed.training.predictions import Predictions
from swad.testbed.training.range_warnings import range_warnings
from swad.testbed.training.result import RunResult, averaged_range
from swad.testbed.training.state import Training
from swad.util.names import snapshot_name
from swad.util.version import __version__


def report(
    training: Training,
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
    scores: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
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
        output.append(score_records(config.name, training.step, final_scores, name))
        if predictions is not None:
            predictions.add(name, final_scores)
        scores[name] = {
            domain: {split: {"loss": score.loss, "accuracy": score.accuracy} for split, score in splits.items()}
            for domain, splits in final_scores.items()
        }
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


def _final_weights(training: Training) -> Iterator[tuple[str, str, dict[str, Tensor]]]:
    """Yield the name, description and tensors of all weights that are reported."""
    if training.config.report_live:
        best = training.best
        if best.weights is not None:
            description = f"The weights of step {best.step}, with the highest mean accuracy on source validation"
            yield "best", description, best.weights
        yield "last", "The weights of the last step", cpu_weights(training.predictor)
    for name, average in training.averages.items():
        with warnings.catch_warnings():  # the result contains this warning
            warnings.simplefilter("ignore", NeverConvergedWarning)
            warnings.simplefilter("ignore", FalseStartWarning)
            yield name, f"An average of the weights along the trajectory: {name}", average.averaged_state()
