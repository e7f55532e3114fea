"""Train a model with one target domain held out, or on all domains: settings in; records, models and a result out.

    config = RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0", averages=("swad", "ema"))
    result = train(config)
    result.target_accuracy("swad")

If the run directory contains a finished run, its result is returned at once; an unfinished one is resumed from its
checkpoint as if it had never stopped. Several processes share every batch, with the numbers of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from swad.averaging.spans import Status
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.averages.segment_log import load_segments
from swad.testbed.data.cache import open_cache
from swad.testbed.data.splits import hold_out
from swad.testbed.models import networks
from swad.testbed.results.metrics import OF_CLASS, Metric, get_metric
from swad.testbed.results.records import Record, RecordError
from swad.testbed.training.callback import RunCallback, combine
from swad.testbed.training.config import ConfigError, ResolvedConfig, RunConfig
from swad.testbed.training.dataset import (
    domain_contents,
    forget_images,
    load_dataset,
    require_decodable,
    require_same_images,
    untrained_classes,
)
from swad.testbed.training.distributed import Dist, in_main_process, process_group
from swad.testbed.training.errors import explain
from swad.testbed.training.evaluation import Evaluator, Values, value_records
from swad.testbed.training.export import cpu_weights
from swad.testbed.training.numerics import torch_settings
from swad.testbed.training.output import RunOutput, report, too_few_evaluations
from swad.testbed.training.recipes import reads_cache, recipe_of
from swad.testbed.training.resolve import resolve
from swad.testbed.training.run_dir import (
    BRANCH,
    SEGMENTS,
    RunDir,
    RunError,
    RunResult,
    damaged_checkpoint,
    disk_errors,
    read_result,
    read_start,
    remove_checkpoint,
)
from swad.testbed.training.state import TrainingState
from swad.util.images import DataError
from swad.util.names import choice_problem, listed, snapshot_name
from swad.util.signals import Interrupted, StopRequest, catch_interrupts
from swad.util.statistics import mean

__all__ = ["ConfigError", "RunCallback", "RunConfig", "RunError", "RunInterrupted", "RunResult", "train"]

CHECKPOINT_SECONDS = 60.0
"""Least time between two checkpoints, unless the config gives a number of steps."""


class RunInterrupted(Interrupted):
    """The run was interrupted and can be resumed."""

    def __init__(self, run_dir: Path, step: int) -> None:
        self.run_dir, self.step = run_dir, step
        # Step 0 or less: images were being decoded, or a preparation was under way, or no checkpoint was saved yet.
        action = f"resume {run_dir} from step {step:,}" if step > 0 else f"train {run_dir}"
        super().__init__(f"Interrupted. Run the same command again to {action}.")


def train(
    config: RunConfig | Mapping[str, Any], *, callback: object | None = None, progress: bool = False
) -> RunResult:
    """Train, evaluate, average and save.

        swad.train({"dataset": "digits", "target": "paper", "output": "runs/paper-0", "averages": "swad,ema"})

    Args:
        config: Settings of the run: a `RunConfig`, or its options by name.
        callback: Receives the events of the run: a `RunCallback`, or any object with some of its methods.
        progress: Show a progress bar in a terminal or notebook, and lines elsewhere.

    Raises:
        ConfigError: The settings are invalid.
        RunError: The run directory cannot be used, or the run cannot continue.
        RunInterrupted: Ctrl-C or SIGTERM; call again to resume.
    """
    if not isinstance(config, RunConfig):
        if not isinstance(config, Mapping):
            raise ConfigError([f"the settings of a run are a RunConfig or a dictionary, got {config!r}"])
        if "output" not in config:
            raise ConfigError(["output is required: the directory of the run"])
        config = RunConfig.from_options(**config)
    forget_images()
    resolved = resolve(config)
    with ExitStack() as stack:
        callbacks = [] if callback is None else [callback]
        if progress:
            # Imported here because it needs rich, which training does not.
            from swad.testbed.training.callback import make_display

            callbacks.append(stack.enter_context(make_display(1)).of_run(resolved.name))
        events = combine(callbacks)
        if not in_main_process():
            events = RunCallback()
        result = _train(resolved, events)
        events.on_end(result)
        return result


def _train(config: ResolvedConfig, callback: RunCallback) -> RunResult:
    finished = read_result(config)
    if finished is not None:
        if in_main_process():
            remove_checkpoint(config.output)  # a process that was killed right after writing the result left it
        return finished
    with ExitStack() as stack:
        dist = stack.enter_context(process_group(config.device))
        stack.enter_context(torch_settings(config, dist.device))
        stop = stack.enter_context(catch_interrupts())
        run_dir, finished = _open_run_dir(config, dist, stack)
        if finished is not None:  # by another process, between the check above and the lock
            return finished
        run = _Run(config, dist, run_dir, stop, callback)
        try:
            return run.run()
        except KeyboardInterrupt:
            raise RunInterrupted(config.output, run.checkpoint_step) from None
        except Exception as error:
            # A package that is interrupted while it is imported may swallow the interrupt and fail in another way.
            if stop.raised:
                raise RunInterrupted(config.output, run.checkpoint_step) from None
            if isinstance(error, RecordError):
                raise RunError(str(error)) from None
            explained = explain(error, config, get_algorithm(config.algorithm))
            if explained is not None:
                raise explained from error
            raise


def _open_run_dir(config: ResolvedConfig, dist: Dist, stack: ExitStack) -> tuple[RunDir | None, RunResult | None]:
    """Open the run directory in the main process; also return the result, if the run turns out to be finished."""

    def open_run_dir() -> RunDir:
        run_dir = RunDir(config)
        stack.callback(run_dir.close)
        return run_dir

    run_dir = dist.call_in_main(open_run_dir, RunError)
    return run_dir, dist.broadcast(None if run_dir is None else run_dir.finished)


class _Run:
    """One run, from loading the data to the result. `run_dir` is None in all processes but the main one."""

    def __init__(
        self, config: ResolvedConfig, dist: Dist, run_dir: RunDir | None, stop: StopRequest, callback: RunCallback
    ) -> None:
        self.config, self.dist, self.run_dir, self.stop, self.callback = config, dist, run_dir, stop, callback
        self.output = RunOutput(config, run_dir, callback)
        self.start_time = self.checkpoint_time = time.perf_counter()
        self.checkpoint_step = 0 if run_dir is None or run_dir.resumed is None else int(run_dir.resumed["step"])

    def run(self) -> RunResult:
        """Set up, train, report."""
        with self.stop.immediate():
            self._load_data()
            self._build()
            self._resume()
            tracking = self.output.start_tracking()
        with tracking:
            self.callback.on_start(self.config, self.config.total_steps, max(0, self.training.step))
            self._train()
            with self.stop.immediate():
                return self._finish()

    # -- set up ---------------------------------------------------------------------------------------------------

    def _load_data(self) -> None:
        config = self.config
        dataset = load_dataset(config, counted=True)
        for note in dataset.notes:
            self.output.log(note)
        self.sources, self.target = hold_out(dataset, config.targets, trial=config.trial, three_way=config.three_way)
        if untrained := untrained_classes(self.sources):
            names = listed(untrained, 5)
            self.output.log(f"warning: no training image shows these classes, so they cannot be recognized: {names}")
        of_classes = [f"{OF_CLASS}{name}" for name in self.sources.classes]
        if config.select_by.startswith(OF_CLASS) and config.select_by not in of_classes:
            raise ConfigError([choice_problem("select_by", config.select_by, of_classes)])
        self.images = domain_contents(dataset)
        self.checkpoint = read_start(self.config) if self.run_dir is None else self.run_dir.resumed
        if self.checkpoint is not None:
            require_same_images(self.config.output, self.checkpoint["images"], self.images)
        self.cache = None
        progress, log = self.callback.on_progress, self.output.log
        if reads_cache(self.config):  # the first run on a dataset builds it, which decodes every image
            self.cache = open_cache(
                dataset, config.cache, config.cache_size, workers=config.workers, progress=progress, log=log
            )
            log(self.cache.describe())
            image_spec = replace(self.sources.image_spec, resized_to=self.cache.resized_to)
            self.sources = replace(self.sources, image_spec=image_spec)
        elif self.checkpoint is None and not recipe_of(self.config).large:
            decode = partial(require_decodable, dataset, config.cache, config.workers, progress, log)
            self.dist.call_in_main(decode, DataError)

    def _build(self) -> None:
        self.training = TrainingState(self.config, self.sources, self.dist, self.cache, self.output.log)
        networks.require_whole_patches(self.training.predictor, self.config.network, self.sources.image_spec.size)
        self.evaluator = Evaluator(self.training, self.output.log)
        for text in too_few_evaluations(self.config, self.training):
            self.output.log(text)

    def _resume(self) -> None:
        """Load the checkpoint, if there is one."""
        if self.checkpoint is not None:
            try:
                self.training.load_state_dict(self.checkpoint)
            except Exception as error:  # torch raises several classes for a state that does not fit
                if "is_branch" in self.checkpoint:
                    raise RunError(f"cannot branch from {self.config.branch_from}: {error}") from None
                raise damaged_checkpoint(self.config.output, error) from None
            self.checkpoint_step = self.training.step
            trunk = self.config.branch_from
            if "is_branch" in self.checkpoint and self.run_dir is not None and trunk is not None:
                self.run_dir.copy_from_trunk(trunk, self.training.step, self.config.snapshots)
            self.checkpoint = None  # frees its memory
            return
        self.checkpoint_step = self.training.step
        if self.run_dir is not None:
            # Remove the segments of an attempt that was killed before its first checkpoint.
            for path in load_segments(self.config.output / SEGMENTS):
                path.unlink()

    # -- train ----------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        config, training, clock = self.config, self.training, self.training.clock
        branch_step = recipe_of(config).branch_step(config)
        start = time.perf_counter()
        for number, inputs in training.inputs():
            if training.should_stop:
                break
            loss = training.train_step(number, inputs)
            step = training.step
            if step > 0:
                self.callback.on_step(step, loss)
            else:
                self.callback.on_progress(f"preparing {config.name}", number, training.n_preparation)
            if step in config.snapshots:
                weights = cpu_weights(training.predictor)
                self.output.save_weights(snapshot_name(step), weights, "The live weights", self.sources, step)
            evaluates = step > 0 and config.evaluates(step)
            if evaluates:
                train_loss = training.pop_train_loss()  # waits for the device, so that the clock is right
                evaluation_start = time.perf_counter()
                clock.steps += evaluation_start - start
                self._evaluate(train_loss)
                start = time.perf_counter()
                clock.evaluation += start - evaluation_start
            due = self._checkpoint_is_due()
            if due or step == branch_step:
                training.loss_sum.item()  # waits for the device, so that the clock is right
                clock.steps += time.perf_counter() - start
                if step == branch_step:  # before the other, from which a resumed run would not come here again
                    self._write_checkpoint(BRANCH)
                if due:
                    self._save_checkpoint()
                start = time.perf_counter()
            # A preparation has no evaluations, but can be stopped as often as if it had.
            if self._stop_requested(evaluates or (step <= 0 and config.evaluates(number))):
                clock.steps += time.perf_counter() - start
                if self.checkpoint_step < step:
                    self._save_checkpoint()
                self.dist.barrier()  # no process leaves before the checkpoint is written: who started it may end all
                raise KeyboardInterrupt

    def _evaluate(self, train_loss: float) -> None:
        """Evaluate the live weights, record the scores, and pass the validation loss to the averages."""
        training, step, name = self.training, self.training.step, self.config.name
        scores = self.evaluator.validation_scores(training.predictor)
        with_target = self.config.target_every_evaluation
        target_scores = self.evaluator.target_scores(training.predictor, self.target) if with_target else {}
        val_loss = mean([score.loss for score in scores.values()])
        values = self.evaluator.values({domain: {"out": score} for domain, score in scores.items()})
        records = [
            *value_records(name, step, values),
            self.training.record("valley_loss", val_loss),
            self.training.record("train_loss", train_loss),
        ]
        records += value_records(name, step, self.evaluator.values(target_scores))
        self.output.append(records)  # before the averages observe the loss, so that a loss they reject is recorded
        self._require_finite(train_loss, val_loss)
        try:
            with disk_errors(self.config.output / SEGMENTS):
                statuses = training.observe(val_loss)
        except ValueError as error:
            raise RunError(f"step {step}: {error}") from None
        self.output.append(self._valley_records(statuses))
        metric = get_metric(self.config.select_by)
        score = self._validation_score(metric, values)
        training.update_best(score)
        if score < (best := training.best).score / 2:
            self.output.log(
                f"warning: the validation {metric.label} fell below half of its best, {100 * best.score:.1f} % at step "
                f"{best.step}: the training seems to diverge"
            )
        losses = {domain: score.loss for domain, score in scores.items()}
        accuracies = {domain: score.accuracy for domain, score in scores.items()}
        self.callback.on_evaluation(step, train_loss, losses, accuracies, statuses)

    def _validation_score(self, metric: Metric, values: Values) -> float:
        """Return what the live weights are selected by."""
        of_domains = [splits["out"][metric.recorded] for splits in values.values() if metric.recorded in splits["out"]]
        if not of_domains:
            raise RunError(
                f"select_by must be defined on the validation images, got {self.config.select_by}, which none of the "
                "source domains has: each needs images of several classes, or choose another metric"
            )
        return metric.over_domains(of_domains)

    def _require_finite(self, train_loss: float, val_loss: float) -> None:
        """Stop a training that has diverged, unless an average with `nonfinite=skip` ignores such evaluations."""
        if math.isfinite(train_loss) or math.isfinite(val_loss):
            return
        step, lr = self.training.step, self.config.hyperparameters.get("lr")
        valleys = [self.training.valley(name) for name in self.training.averages]
        if any(valley is not None and valley.nonfinite == "skip" for valley in valleys):
            self.output.log(
                f"step {step}: the losses are not finite; averages with nonfinite=skip skip this evaluation"
            )
            return
        raise RunError(
            f"the training diverged: at step {step} the training loss is {train_loss} and the validation loss is "
            f"{val_loss}; lower lr (it is {lr:g}) or set clip, and train in another directory"
        )

    def _valley_records(self, statuses: Mapping[str, Status]) -> list[Record]:
        """Record the values of each valley that changed since they were recorded last."""
        records, recorded = [], self.training.recorded
        for name, status in statuses.items():
            if self.training.valley(name) is None:
                continue
            for metric in ("threshold", "start_step", "end_step", "n_averaged"):
                value = getattr(status, metric)
                key = f"{name} {metric}"
                if value is not None and recorded.get(key) != value:
                    recorded[key] = value
                    records.append(self.training.record(metric, value, name))
        return records

    def _stop_requested(self, agree: bool) -> bool:
        """Whether to stop now. Several processes must stop at the same step, so they do where they can `agree`."""
        if self.dist.world_size == 1:
            return self.stop.requested
        return agree and self.dist.any(self.stop.requested)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def _checkpoint_is_due(self) -> bool:
        """Whether to save a checkpoint now, also between evaluations: an epoch of a large dataset may take an hour."""
        every = self.config.checkpoint_every
        if every is not None:
            return self.training.step - self.checkpoint_step >= every
        return time.perf_counter() - self.checkpoint_time >= CHECKPOINT_SECONDS

    def _save_checkpoint(self) -> None:
        """Save the state of the run. The other processes have the same state and write nothing."""
        self._write_checkpoint()
        self.checkpoint_step, self.checkpoint_time = self.training.step, time.perf_counter()

    def _write_checkpoint(self, *name: str) -> None:
        if self.run_dir is None:
            return
        state, seconds = self.training.state_dict(), time.perf_counter() - self.start_time
        state["images"] = self.images
        state["clock"] = {**state["clock"], "total": self.training.clock.total + seconds}
        self.run_dir.save_checkpoint(state, *name)

    # -- report ---------------------------------------------------------------------------------------------------

    def _finish(self) -> RunResult:
        """Evaluate and save everything that is reported. If that fails, keep the finished training."""
        records_offset = None if self.run_dir is None else self.run_dir.records_offset()
        try:
            result = report(self.training, self.evaluator, self.target, self.output, self.callback, self.start_time)
            if self.run_dir is not None:
                self.run_dir.finish(result)
        except BaseException:  # e.g. an image of the target that cannot be read
            if self.run_dir is not None and records_offset is not None and not self.run_dir.has_result:
                self._keep_training(records_offset)
            raise
        self.dist.barrier()  # no process leaves before the result is written
        return result

    def _keep_training(self, records_offset: int) -> None:
        """Save the finished training without its report, which the next attempt writes as a whole."""
        assert self.run_dir is not None
        if self.checkpoint_step < self.training.step:
            self.run_dir.truncate_records(records_offset)
            self._save_checkpoint()
