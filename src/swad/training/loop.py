"""THE loop: settings in; records, models and an outcome out.

    config = RunConfig.from_options(dataset="digits", target="paper", output="runs/paper-0", averages=("swad", "swa"))
    result = train(config)
    result.target_accuracy("swad")

Called again on the same folder, a finished run answers at once and an unfinished one goes on from its checkpoint as
if it had never stopped. Under ``torchrun`` the processes share every batch and give the numbers of one.
"""

from __future__ import annotations

import copy
import math
import os
import platform
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from swad import __version__
from swad.averaging.segment_log import load_segments
from swad.averaging.swad import NeverConvergedWarning
from swad.averaging.valley import Status
from swad.data import benchmarks
from swad.data.cache import ImageCache, open_cache
from swad.data.domains import Dataset
from swad.data.splits import HeldOut, Sources, Target, hold_out
from swad.results.records import Record, export_tensorboard, iterate_records
from swad.training import export
from swad.training.config import ConfigError, RunConfig
from swad.training.distributed import Dist, process_group
from swad.training.evaluation import Score
from swad.training.evaluator import Evaluator, score_records
from swad.training.interrupts import StopRequest, catch_interrupts
from swad.training.resolve import resolve
from swad.training.result import RunResult, averaged_range
from swad.training.run_dir import (
    SEGMENTS,
    TENSORBOARD,
    WEIGHTS,
    RunDir,
    RunError,
    disk_errors,
    read_checkpoint,
    read_result,
)
from swad.training.state import Training

__all__ = ["ConfigError", "Interrupted", "RunCallback", "RunConfig", "RunError", "RunResult", "train"]

CHECKPOINT_SECONDS = 60.0


class Interrupted(RuntimeError):  # noqa: N818 - nothing went wrong
    """The run was interrupted and can be resumed."""

    def __init__(self, run_dir: Path, step: int) -> None:
        self.run_dir, self.step = run_dir, step
        action = f"resume {run_dir} from step {step:,}" if step else f"start {run_dir} again"
        super().__init__(f"Interrupted. Run the same command again to {action}.")


class RunCallback(Protocol):
    """Whoever wants to watch a run. All calls come from the first process."""

    def on_start(self, config: RunConfig, total: int, step: int) -> None:
        """Training begins, or goes on after `step` of `total` updates."""

    def on_log(self, text: str) -> None:
        """Something about how the run is computed: what was chosen, what was not possible and why."""

    def on_progress(self, what: str, done: int, total: int | None) -> None:
        """Work before the first step: so much of it is done."""

    def on_step(self, step: int, loss: Tensor) -> None:
        """An update was made. Reading the loss waits for the device: do so now and then."""

    def on_evaluation(
        self, step: int, train_loss: float, losses: Mapping[str, float], statuses: Mapping[str, Status]
    ) -> None:
        """The mean loss of the steps since the last one, source validation losses by domain, where averages stand."""

    def on_end(self, result: RunResult) -> None:
        """The run is done; also called for a run that was done before."""


def train(config: RunConfig, *, callback: RunCallback | None = None) -> RunResult:
    """Train, evaluate, average and save as `config` says.

    Raises `ConfigError` for settings that cannot be run, `RunError` for a folder that cannot be used or a run that
    cannot go on, `Interrupted` after Ctrl-C or SIGTERM, and what data and networks raise for themselves.
    """
    config = resolve(config)
    done = read_result(config)
    if done is not None:
        result = RunResult.from_json(done, config)
    else:
        with ExitStack() as stack:
            dist = stack.enter_context(process_group(config.machine.device))
            stack.enter_context(_numerics(config, dist.device))
            stop = stack.enter_context(catch_interrupts())
            folder = _open_folder(config, dist, stack)
            run = _Run(config, dist, folder, stop, callback if dist.is_main else None)
            try:
                result = run.whole()
            except KeyboardInterrupt:
                raise Interrupted(config.output, run.safe_step) from None
            except Exception:
                # Packages that are interrupted while they load swallow it, and fail for another reason.
                if stop.raised:
                    raise Interrupted(config.output, run.safe_step) from None
                raise
    if callback is not None and (done is not None or dist.is_main):
        callback.on_end(result)
    return result


class _Run:
    """One run from its first to its last step."""

    def __init__(
        self, config: RunConfig, dist: Dist, folder: RunDir | None, stop: StopRequest, callback: RunCallback | None
    ) -> None:
        self.config, self.dist, self.folder, self.stop, self.callback = config, dist, folder, stop, callback
        # Of the last checkpoint.
        self.safe_step = 0 if folder is None or folder.resumed is None else int(folder.resumed["step"])
        self.began = self.checkpointed = time.perf_counter()
        self.messages: list[str] = []

    def whole(self) -> RunResult:
        """Load, train, report."""
        with self.stop.immediate():
            dataset = self._dataset()
            for note in dataset.notes:
                self._log(note)
            sources, target = self._held_out(dataset)
            self.images = {part.name: len(part.domain) for part in (*sources.train, *target.full)}
            cache = self._cache(dataset)
            self.training = Training(self.config, sources, self.dist, self.config.output / SEGMENTS, cache, self._log)
            self.evaluator = Evaluator(self.config, sources, self.dist, self.training, cache, self._log)
            self._resume()
        if self.callback is not None:
            self.callback.on_start(self.config, self.config.total_steps, self.training.step)
        self._loop(sources, target)
        written = None if self.folder is None else self.folder.records_offset()
        with self.stop.immediate():
            try:
                return self._report(sources, target)
            except BaseException:  # an image of the target that cannot be read, say: training must not be lost for it
                if self.folder is not None and written is not None and self.safe_step < self.training.step:
                    self.folder.truncate_records(written)  # the report begins again as a whole
                    self._checkpoint()
                raise

    def _loop(self, sources: Sources, target: Target) -> None:
        config, training = self.config, self.training
        mark = time.perf_counter()
        for step, inputs in training.batches.inputs(training.step + 1, config.total_steps):
            if training.complete:
                break
            loss = training.update(step, inputs)
            if self.callback is not None:
                self.callback.on_step(step, loss)
            if step in config.files.snapshots:
                self._save(_snapshot(step), export.cpu_weights(training.predictor), sources, "The live weights")
            if config.evaluates(step):
                train_loss = training.take_train_loss()  # waits for the device, so that the clock below is right
                training.clock.steps += time.perf_counter() - mark
                mark = time.perf_counter()
                with self.stop.immediate():
                    self._evaluate(train_loss, target)
                training.clock.evaluation += time.perf_counter() - mark
                self._checkpoint_if_due()
                mark = time.perf_counter()
                if self.dist.any(self.stop.requested):
                    self._leave()
            elif self.stop.requested and self.dist.world_size == 1:
                training.clock.steps += time.perf_counter() - mark
                self._leave()

    def _evaluate(self, train_loss: float, target: Target) -> None:
        """Measure the live weights, write it down, and let the averages decide."""
        training, evaluator, step = self.training, self.evaluator, self.training.step
        scores = evaluator.validation_scores(training.predictor)
        loss = _mean([score.loss for score in scores.values()])
        found = [
            *score_records(self.config.name, step, {name: {"out": score} for name, score in scores.items()}),
            self._record("valley_loss", loss),
            self._record("train_loss", train_loss),
        ]
        if self.config.evaluation.target_every_evaluation:
            found += score_records(self.config.name, step, evaluator.target_scores(training.predictor, target))
        self._write(found)  # before the averages see the loss: one they refuse is then on record
        try:
            statuses = training.observe(loss)
        except ValueError as error:
            raise RunError(f"step {step}: {error}") from None
        self._write(self._changes(statuses))
        training.consider(_mean([score.accuracy for score in scores.values()]))
        if self.callback is not None:
            losses = {name: score.loss for name, score in scores.items()}
            self.callback.on_evaluation(step, train_loss, losses, statuses)

    def _changes(self, statuses: Mapping[str, Status]) -> list[Record]:
        """What is new about the valleys since it was last written."""
        found = []
        for name, status in statuses.items():
            if self.training.valley_of(name) is None:
                continue
            for metric in ("threshold", "start_step", "end_step", "n_averaged"):
                value = getattr(status, metric)
                key = f"{name} {metric}"
                if value is not None and self.training.told.get(key) != value:
                    self.training.told[key] = value
                    found.append(self._record(metric, value, name))
        return found

    # -- the end --------------------------------------------------------------------------------------------------

    def _report(self, sources: Sources, target: Target) -> RunResult:
        """Measure and save everything that is reported, and mark the run as done."""
        training, config = self.training, self.config
        judge = copy.deepcopy(training.predictor)  # the averages still look at the live one
        scores: dict[str, dict[str, dict[str, Score]]] = {}
        ranges = {name: averaged_range(average.status) for name, average in training.averages.items()}
        files: dict[str, str] = {}
        for name, text, weights in self._finals():
            judge.load_state_dict(weights)
            mark = time.perf_counter()
            scores[name] = self.evaluator.final_scores(judge, target)
            training.clock.evaluation += time.perf_counter() - mark
            self._write(score_records(config.name, training.step, scores[name], name))
            files[name] = self._save(name, weights, sources, text, ranges.get(name), _plain(scores[name]))
        for step in config.files.snapshots:
            if step <= training.step:
                files[_snapshot(step)] = f"{WEIGHTS}/{_snapshot(step)}.safetensors"
        clock = training.clock
        clock.total += time.perf_counter() - self.began
        self._write(
            [
                self._record("seconds_total", clock.total),
                self._record("seconds_per_step", clock.steps / max(1, training.step)),
                self._record("seconds_evaluation", clock.evaluation),
            ]
        )
        result = RunResult(
            config.output,
            config,
            training.step,
            {name: _plain(found) for name, found in scores.items()},
            ranges,
            files,
            clock.total,
            self._warnings(),
            {"swad": __version__, "torch": torch.__version__, "python": platform.python_version()},
            (
                f"engine {training.engine.kind}, {config.data.input_pipeline} input pipeline, "
                f"{config.training.precision}",
                *self.messages,
            ),
        )
        if self.folder is not None:
            self._tensorboard()
            self.folder.finish(result.to_json())
        self.dist.barrier()  # nobody leaves before the outcome is written
        return result

    def _finals(self) -> Iterator[tuple[str, str, dict[str, Tensor]]]:
        training = self.training
        if self.config.evaluation.report_live:
            best = training.best
            if best.weights is not None:
                text = f"The weights of update {best.step}, with the best mean accuracy on source validation"
                yield "best", text, best.weights
            yield "last", "The weights of the last update", export.cpu_weights(training.predictor)
        for name, average in training.averages.items():
            with warnings.catch_warnings():  # the outcome says it for good
                warnings.simplefilter("ignore", NeverConvergedWarning)
                yield name, f"An average of the weights along the trajectory: {name}", average.averaged_state()

    def _warnings(self) -> tuple[str, ...]:
        found = []
        for name in self.training.averages:
            valley = self.training.valley_of(name)
            if valley is not None and not valley.converged:
                found.append(f"the validation loss never converged for {name}, so its range is a fallback")
        return tuple(found)

    def _save(
        self,
        name: str,
        weights: dict[str, Tensor],
        sources: Sources,
        description: str,
        taken: Mapping[str, Any] | None = None,
        scores: Mapping[str, Any] | None = None,
    ) -> str:
        file = f"{WEIGHTS}/{name}.safetensors"
        if self.folder is None:
            return file
        config, image_spec = self.config, sources.image_spec
        card = {
            "description": description,
            "version": __version__,
            "network": config.model.network,
            "freeze_bn": config.model.freeze_bn,
            "classes": list(sources.classes),
            "input": {
                "size": image_spec.size,
                "channels": image_spec.channels,
                "low_res": image_spec.low_res,
                "mean": list(image_spec.mean),
                "std": list(image_spec.std),
            },
            "dataset": config.data.dataset,
            "algorithm": config.training.algorithm,
            "sources": list(sources.names),
            "targets": list(config.data.targets),
            "trial": config.data.trial,
            "steps": self.training.step,
            "range": taken,
            "scores": scores,
            "config": config.to_dict(),
        }
        with disk_errors(config.output / file):
            export.save_weights(config.output / file, weights, card)
        return file

    def _tensorboard(self) -> None:
        if self.config.files.tensorboard:
            place = self.config.output / TENSORBOARD
            shutil.rmtree(place, ignore_errors=True)  # of an attempt that was killed here
            export_tensorboard(iterate_records(self.config.output), place)

    # -- going on -------------------------------------------------------------------------------------------------

    def _dataset(self) -> Dataset:
        config = self.config
        return benchmarks.load(
            config.data.dataset,
            config.data.data_dir,
            check_counts=config.data.check_counts,
            **config.data.dataset_options,
        )

    def _held_out(self, dataset: Dataset) -> HeldOut:
        config = self.config
        return hold_out(dataset, config.data.targets, trial=config.data.trial, three_way=config.data.three_way)

    def _cache(self, dataset: Dataset) -> ImageCache | None:
        """The decoded images, where the run works on those; the first run on a dataset makes them."""
        config = self.config
        if config.data.input_pipeline != "gpu":
            return None
        progress = self.callback.on_progress if self.callback is not None else None
        cache = open_cache(
            dataset,
            config.machine.cache,
            config.data.cache_size,
            workers=config.machine.workers,
            progress=progress,
            log=self._log,
        )
        self._log(cache.describe())
        return cache

    def _log(self, text: str) -> None:
        """Something about how this run is computed that its reader should know."""
        if text not in self.messages:
            self.messages.append(text)
            if self.callback is not None:
                self.callback.on_log(text)

    def _resume(self) -> None:
        state = read_checkpoint(self.config.output) if self.folder is None else self.folder.resumed
        if state is not None:
            self._require_same_images(state["images"])
            self.training.load(state)
            self.safe_step = self.training.step
        elif self.folder is not None:
            # Segments of an attempt that was killed before its first checkpoint.
            for path in load_segments(self.config.output / SEGMENTS):
                path.unlink()

    def _require_same_images(self, before: Mapping[str, int]) -> None:
        """Splits follow from the number of images: with another, validation images would have been trained on."""
        now = self.images
        differs = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        if differs:
            listed = ", ".join(f"{name} {before.get(name, 0)} then, {now.get(name, 0)} now" for name in differs)
            raise RunError(
                f"the data changed since {self.config.output} began ({listed}): put the images back, or remove that "
                "folder to begin again"
            )

    def _checkpoint_if_due(self) -> None:
        every, training = self.config.files.checkpoint_every, self.training
        if every is not None:
            due = training.step - self.safe_step >= every
        else:
            due = time.perf_counter() - self.checkpointed >= CHECKPOINT_SECONDS
        if due:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Write down where we are. Processes other than the first have the same state and write nothing."""
        now = time.perf_counter()
        if self.folder is not None:
            state = self.training.state()
            state["images"] = self.images
            state["clock"] = {**state["clock"], "total": self.training.clock.total + now - self.began}
            self.folder.save_checkpoint(state)
        self.safe_step, self.checkpointed = self.training.step, now

    def _leave(self) -> None:
        if self.safe_step < self.training.step:
            self._checkpoint()
        raise KeyboardInterrupt

    def _write(self, found: list[Record]) -> None:
        if self.folder is not None:
            self.folder.append(*found)

    def _record(self, metric: str, value: float, average: str | None = None) -> Record:
        return Record(self.config.name, self.training.step, None, None, metric, value, average)


def _snapshot(step: int) -> str:
    return f"step-{step:06d}"


def _open_folder(config: RunConfig, dist: Dist, stack: ExitStack) -> RunDir | None:
    """Take the folder, in the first process; if it cannot, all processes hear why."""
    folder, trouble = None, None
    if dist.is_main:
        try:
            folder = RunDir(config)
            stack.callback(folder.close)
        except RunError as error:
            trouble = str(error)
    trouble = dist.broadcast(trouble)
    if trouble is not None:
        raise RunError(trouble)
    return folder


@contextmanager
def _numerics(config: RunConfig, device: torch.device) -> Iterator[None]:
    """torch's global switches as the run wants them, and everything as it was afterwards."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
    )
    on_gpu = device.type == "cuda"
    if config.machine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(True)
    # Trying every algorithm took 6 to 9 s and found none faster: ResNet-50 in bf16, 13.2 ms either way (H200).
    torch.backends.cudnn.benchmark = False
    if config.machine.threads is not None and config.machine.threads != before[3]:
        torch.set_num_threads(config.machine.threads)
    try:
        with torch.random.fork_rng([device] if on_gpu else []):
            yield
    finally:
        if config.machine.deterministic:  # the call loads torch's compiler, seconds of it
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]
        if torch.get_num_threads() != before[3]:
            torch.set_num_threads(before[3])


def _plain(scores: Mapping[str, Mapping[str, Score]]) -> dict[str, dict[str, dict[str, float]]]:
    return {
        domain: {split: {"loss": score.loss, "accuracy": score.accuracy} for split, score in splits.items()}
        for domain, splits in scores.items()
    }


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
