"""SWAD, and any other average, as a callback of the Hugging Face Trainer.

from swad.integrations.transformers import AverageCallback, SWADCallback

callback = SWADCallback()                        # or AverageCallback(swad.EMA, decay=0.999, evaluate="average")
trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[callback])
trainer.train()                                  # afterwards the model has the averaged weights
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from swad.averaging.average import Average
from swad.averaging.swad import SWAD
from swad.integrations._callback import Evaluate, FollowedTraining, MissingState, metrics
from swad.integrations.checkpoints import metadata, read_state, write_state
from swad.tensors.batch_norms import ForwardFn

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.utils import logging
except ImportError as error:
    raise ImportError('the Hugging Face callback needs transformers: pip install "swad[transformers]"') from error

if TYPE_CHECKING:
    from transformers import Trainer  # which also needs accelerate

_logger = logging.get_logger("transformers.swad")  # inside transformers, so that `log_level` of its arguments applies


class AverageCallback(FollowedTraining, TrainerCallback):  # type: ignore[misc]
    """Average the weights while the Trainer trains; afterwards the model has the average.

        AverageCallback(swad.EMA, decay=0.999, evaluate="average")

    The average is built when training starts, as `average(model, **options)`. A hook on the optimizer inside
    accelerate's counts the steps, so gradient accumulation and steps that a scaler skips are counted correctly.

    **Checkpoints.** The process that saves them writes the state of the average next to the model as
    `<name>.safetensors`. It holds sums; `swad.averaged_weights("checkpoint-500")` returns the averaged weights.
    `train(resume_from_checkpoint=...)` continues exactly. With `evaluate="average"`, evaluations are of the average,
    and so are the weights in checkpoints, so that `load_best_model_at_end` keeps those with the best score; the live
    weights to continue from are next to them, in the state of the average. The Trainer does not pass the folder it
    resumes from to callbacks, so the trainer's state records the path of the file and an identity written in it. If the
    folder has moved since, pass it as `resume_from`.

    Args:
        average: The class of the average, or a function of the model that returns one.
        evaluate: "live", or "average" to evaluate and save the average.
        monitor: The evaluation loss of the live model, for a rule of your own that uses it.
        apply_at_end: Copy the average into the model when `train` ends, also over the best model that
            `load_best_model_at_end` restored, unless that is an average too. `trainer.save_model()` then saves it.
        update_bn: Recompute the batch-norm statistics from one pass over the training data after copying the average.
            True calls the model with the inputs of a batch; a function is called with the model and the batch.
            By default a warning says that they are stale. Frozen statistics need nothing.
        missing_state: What to do when a resumed checkpoint contains no average: "raise", or "start" a new one.
        resume_from: The checkpoint folder to read the average from, if it has moved.
        name: The name of the files, by default that of the class in lower case; several callbacks need different ones.
        options: Options of the class.
    """

    def __init__(
        self,
        average: Callable[..., Average],
        *,
        evaluate: Evaluate = "live",
        monitor: str | None = None,
        apply_at_end: bool = True,
        update_bn: bool | ForwardFn = False,
        missing_state: MissingState = "raise",
        resume_from: str | os.PathLike[str] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(average, options, evaluate, monitor, apply_at_end, update_bn, missing_state, name)
        self.resume_from = resume_from
        self.stop_training = False
        self._training = False
        self._first_step = 0  # updates before this call of train
        self._monitored = False
        self._unmonitored: set[str] = set()
        self._identity = ""
        self._log: Callable[[dict[str, float]], None] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> TrainerControl:
        """Build the average on the prepared model, restore its state when resuming, and follow the optimizer."""
        if not state.global_step and self.name in state.stateful_callbacks:
            raise ValueError(f"the files of two callbacks need different names, got {self.name!r} twice: set name")
        if state.global_step and self._swap is not None:
            raise RuntimeError("the last training failed while the model had the average: resume with a new Trainer")
        resumed = self._resumed(args, state) if state.global_step else None
        self._start(trainer["model"], trainer["optimizer"], resumed)
        self._training, self._monitored, self._unmonitored = True, False, set()
        self._first_step = self.averager.step
        # The trainer saves this with every checkpoint: it identifies the file that belongs to the checkpoint.
        self._identity = uuid.uuid4().hex
        state.stateful_callbacks[self.name] = {
            "identity": self._identity,
            "output_dir": os.path.abspath(args.output_dir),
        }
        self._warn_about_settings(args, state, trainer["lr_scheduler"])
        if self.stop_training and self.status.should_stop:
            control.should_training_stop = True
        if args.eval_on_start:
            self._show_average()
        return control

    def _warn_about_settings(self, args: TrainingArguments, state: TrainerState, scheduler: Any) -> None:
        """Warn about the Trainer's own defaults: no evaluation, and a learning rate that decays to zero."""
        if args.eval_strategy == "no":
            self._warn_about_swad(
                "SWAD finds the updates to average by the evaluation loss, but eval_strategy='no' never evaluates: "
                "set eval_strategy='steps' and eval_steps"
            )
        factors = getattr(getattr(scheduler, "scheduler", scheduler), "lr_lambdas", ())  # accelerate wraps schedulers
        if factors and all(factor is not None and factor(state.max_steps) == 0 for factor in factors):
            self._warn_about_swad(
                "SWAD is made for a constant learning rate, but this one decays to zero: "
                "set lr_scheduler_type='constant' (the Trainer's default is 'linear')"
            )

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> TrainerControl:
        """Observe the loss; with several evaluation sets, that of the monitored one."""
        if not self._training or self.averager.step == self._first_step or self.monitor is None:
            return control
        evaluated: dict[str, float] = trainer["metrics"]
        if self.monitor not in evaluated:
            self._unmonitored |= {key for key in evaluated if key.startswith("eval_")}
            return control
        self._monitored = True
        status = self._observe_once(evaluated[self.monitor], state.global_step)
        if status is None:
            return control
        numbers = {f"{self.name}/{key}": value for key, value in metrics(status).items()}
        evaluated.update(numbers)
        if self._log is None:
            state.log_history.append({**numbers, "epoch": state.epoch, "step": state.global_step})
        else:
            self._log(dict(numbers))
        if status.should_stop and self.stop_training:
            control.should_training_stop = True
            if state.is_world_process_zero:
                _logger.warning(f"{self.name} stops training at step {state.global_step}: {status.reason}")
        return control

    def log_with(self, trainer: Trainer) -> None:
        """Send the metrics to the loggers of `trainer` too (TensorBoard, W&B), which callbacks cannot reach."""
        self._log = trainer.log

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        """Train the live weights, and refuse to continue after an evaluation that reported no monitored loss."""
        self._show_live()
        if self._unmonitored and not self._monitored:
            times = ("_runtime", "_per_second", "_time")
            losses = [repr(name) for name in sorted(self._unmonitored) if not name.endswith(times)]
            advice = "set monitor to one of them" if losses else "give the evaluation dataset labels"
            raise ValueError(
                f"the monitored loss must be among the metrics of an evaluation, but {self.monitor!r} is not; "
                f"got {', '.join(losses) or 'no loss'}: {advice}"
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        """Swap the average in, if it is what is evaluated or saved next."""
        if control.should_evaluate:
            self._before_evaluation()
        elif control.should_save:
            self._show_average()

    on_epoch_end = on_step_end

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any) -> None:
        """Give the model its live weights back before the Trainer loads the best ones; no other hook is between."""
        if "train_runtime" in trainer["logs"]:
            self._show_live()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any) -> None:
        """Write the average next to the checkpoint that was just saved."""
        if not state.is_hyper_param_search:  # callbacks do not know the folders of trials, and trials are not resumed
            saved = self._state(keep=args.should_save, with_live=self._swap is not None)
            if args.should_save:
                write_state(self._file(args.output_dir, state), saved, f"{self._identity}:{state.global_step}")
        self._show_live()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        """Copy the average into the model."""
        self._detach()
        self._training = False
        model: nn.Module = trainer["model"]
        keeps_best = self.evaluate == "average" and args.load_best_model_at_end and state.best_model_checkpoint
        if self.apply_at_end and self.status.n_averaged and not keeps_best:
            forward_fn = self.update_bn if callable(self.update_bn) else None
            self._apply(model, trainer["train_dataloader"], forward_fn)

    def _file(self, output_dir: str, state: TrainerState) -> Path:
        return Path(output_dir, f"checkpoint-{state.global_step}", f"{self.name}.safetensors")

    def _resumed(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any] | None:
        """Return the state of the average in the checkpoint that `state` was read from."""
        recorded = state.stateful_callbacks.get(self.name)
        if recorded is None:
            if self.missing_state == "start":
                return None
            raise ValueError(
                f"a resumed average needs its state, but the checkpoint of step {state.global_step} was saved "
                f"without this callback: pass missing_state='start' to begin averaging here"
            )
        folders = [os.fspath(folder) for folder in (self.resume_from, args.resume_from_checkpoint) if folder]
        named = [Path(folder, f"{self.name}.safetensors") for folder in folders]
        candidates = [*named, self._file(recorded["output_dir"], state), self._file(args.output_dir, state)]
        identity = f"{recorded['identity']}:{state.global_step}"  # of this training and this step
        for path in dict.fromkeys(candidates):
            if path.is_file() and metadata(path).get("identity") == identity:
                return read_state(path)
        if self.missing_state == "start":
            return None
        raise FileNotFoundError(
            f"a resumed average needs its state, but that of step {state.global_step} is not at "
            f"{' or '.join(dict.fromkeys(map(str, candidates)))}: pass the folder of the checkpoint as resume_from, "
            f"or pass missing_state='start' to begin averaging here"
        )


class SWADCallback(AverageCallback):
    """Average the weights of every optimizer step inside the valley of the evaluation loss.

    The Trainer evaluates the live model (`eval_strategy="steps"`), and its `eval_loss` decides. An evaluation before
    the first step (`eval_on_start`) and evaluations outside `train` are not observed. SWAD is made for a constant
    learning rate (`lr_scheduler_type="constant"`); the Trainer's own default decays to zero. Steps and checkpoints are
    those of `AverageCallback`.

    To evaluate the average during training:

        with callback.average_parameters():
            trainer.evaluate()

    **Logged metrics**: `swad/phase` (0 searching, 1 averaging, 2 stopped), `swad/threshold`, `swad/n_averaged`,
    `swad/start_step`, `swad/end_step`, in `state.log_history` and in the metrics that the evaluation returns. Call
    `callback.log_with(trainer)` before training to send them to the trainer's loggers too. A warning says when the
    start of the valley was probably a false one.

    Args:
        monitor: The evaluation loss; with several evaluation sets, one of `eval_<dataset>_loss`.
        stop_training: Stop when the valley ends.
        name: The name of the files and the prefix of the metrics; several callbacks need different names.
        options: Arguments of `AverageCallback`, and options of `swad.SWAD`.
    """

    def __init__(
        self, monitor: str = "eval_loss", *, stop_training: bool = True, name: str = "swad", **options: Any
    ) -> None:
        super().__init__(SWAD, monitor=monitor, name=name, **options)
        self.stop_training = stop_training
