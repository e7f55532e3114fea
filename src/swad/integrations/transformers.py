"""SWAD as a callback of the Hugging Face Trainer.

from swad.integrations.transformers import SWADCallback

callback = SWADCallback()
trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[callback])
trainer.train()                                  # afterwards the model has the averaged weights
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from swad.averaging.average import Average
from swad.averaging.batchnorm import ForwardFn
from swad.integrations._callback import AverageCallback, MissingState, gather_state, metrics
from swad.util.files import atomic_write
from swad.util.names import one_line

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.utils import logging
except ImportError as error:
    raise ImportError('the Hugging Face callback needs transformers: pip install "swad[transformers]"') from error

if TYPE_CHECKING:
    from transformers import Trainer  # which also needs accelerate

_logger = logging.get_logger("transformers.swad")  # inside transformers, so that `log_level` of its arguments applies


class SWADCallback(AverageCallback, TrainerCallback):  # type: ignore[misc]
    """Average the weights of every optimizer step inside the valley of the evaluation loss.

    The Trainer evaluates the live model (`eval_strategy="steps"`), and its `eval_loss` decides. A hook on the optimizer
    inside accelerate's counts the steps, so gradient accumulation and steps that a scaler skips are counted correctly.
    An evaluation before the first step (`eval_on_start`) and evaluations outside `train` are not observed. SWAD is made
    for a constant learning rate (`lr_scheduler_type="constant"`); the Trainer's own default decays to zero.

    To evaluate the average during training:

        with callback.average_parameters():
            trainer.evaluate()

    **Logged metrics**: `swad/phase` (0 searching, 1 averaging, 2 stopped), `swad/threshold`, `swad/n_averaged`,
    `swad/start_step`, `swad/end_step`, in `state.log_history` and in the metrics that the evaluation returns. Call
    `callback.log_with(trainer)` before training to send them to the trainer's loggers too.

    **Checkpoints** have the live weights. The process that saves them writes the average next to them as
    `swad.safetensors`, and `train(resume_from_checkpoint=...)` continues exactly. The Trainer does not pass the folder
    it resumes from to callbacks, so the trainer's state records the path of the file and an identity written in it. If
    the folder has moved since, pass it as `resume_from`.

    Args:
        monitor: The evaluation loss; with several evaluation sets, one of `eval_<dataset>_loss`.
        stop_training: Stop when the valley ends.
        apply_at_end: Copy the average into the model when `train` ends, also over the best model that
            `load_best_model_at_end` restored. `trainer.save_model()` then saves the average.
        update_bn: Recompute the batch-norm statistics from one pass over the training data after copying the average.
            True calls the model with the inputs of a batch; a function is called with the model and the batch.
            By default a warning says that they are stale. Frozen statistics need nothing.
        missing_state: What to do when a resumed checkpoint contains no average: "raise", or "start" a new one.
        resume_from: The checkpoint folder to read the average from, if it has moved.
        name: The name of the files; several callbacks need different names.
        average: Another class, e.g. `average=swad.EMA, decay=0.999`. By default `swad.SWAD`.
        options: Options of that class.
    """

    def __init__(
        self,
        monitor: str = "eval_loss",
        *,
        stop_training: bool = True,
        apply_at_end: bool = True,
        update_bn: bool | ForwardFn = False,
        missing_state: MissingState = "raise",
        resume_from: str | os.PathLike[str] | None = None,
        name: str = "swad",
        average: Callable[..., Average] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(monitor, name, missing_state, update_bn, average, options)
        self.stop_training, self.apply_at_end = stop_training, apply_at_end
        self.resume_from = resume_from
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
        if not self._training or self.averager.step == self._first_step:
            return control
        evaluated: dict[str, float] = trainer["metrics"]
        if self.monitor not in evaluated:
            self._unmonitored |= {key for key in evaluated if key.startswith("eval_")}
            return control
        self._monitored = True
        status = self._observe_once(evaluated[self.monitor])
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
        """Refuse to continue after an evaluation that reported no monitored loss."""
        if self._unmonitored and not self._monitored:
            times = ("_runtime", "_per_second", "_time")
            losses = [repr(name) for name in sorted(self._unmonitored) if not name.endswith(times)]
            advice = "set monitor to one of them" if losses else "give the evaluation dataset labels"
            raise ValueError(
                f"the monitored loss must be among the metrics of an evaluation, but {self.monitor!r} is not; "
                f"got {', '.join(losses) or 'no loss'}: {advice}"
            )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any) -> None:
        """Write the average next to the checkpoint that was just saved."""
        if state.is_hyper_param_search:
            return  # callbacks do not know the folders of trials, and trials are not resumed
        saved = gather_state(self.averager.state_dict(), keep=args.should_save)
        if args.should_save:
            _write(self._file(args.output_dir, state), saved, f"{self._identity}:{state.global_step}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        """Copy the average into the model."""
        self._detach()
        self._training = False
        model: nn.Module = trainer["model"]
        if self.apply_at_end and self.averager.step:
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
            if path.is_file() and _metadata(path).get("identity") == identity:
                return _read(path)
        if self.missing_state == "start":
            return None
        raise FileNotFoundError(
            f"a resumed average needs its state, but that of step {state.global_step} is not at "
            f"{' or '.join(dict.fromkeys(map(str, candidates)))}: pass the folder of the checkpoint as resume_from, "
            f"or pass missing_state='start' to begin averaging here"
        )


def _write(path: Path, state: dict[str, Any], identity: str) -> None:
    """Write the state of an average as one safetensors file: tensors by name, the header in the metadata.

    Args:
        path: The file.
        state: From `state_dict`.
        identity: The checkpoint that the file belongs to.
    """
    named = _flattened({part: value for part, value in state.items() if part != "header"}, ())
    tensors = {json.dumps(place): tensor.detach().contiguous() for place, tensor in named}
    with atomic_write(path) as partial:
        save_file(tensors, partial, metadata={"header": state["header"], "identity": identity})


def _read(path: Path) -> dict[str, Any]:
    """Return a written state in the form that `load_state_dict` takes."""
    state: dict[str, Any] = {"header": _metadata(path)["header"], "segment": {}, "averages": {}, "listeners": {}}
    with safe_open(path, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 - a file handle, not a dict
            *parents, name = json.loads(key)
            place = state
            for parent in parents:
                place = place.setdefault(parent, {})
            place[name] = file.get_tensor(key)
    return state


def _flattened(state: Mapping[str, Any], parents: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield the tensors of nested dicts, each with the keys that lead to it."""
    for name, value in state.items():
        if isinstance(value, Tensor):
            yield (*parents, name), value
        else:
            yield from _flattened(value, (*parents, name))


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({one_line(error)}): resume from another checkpoint") from None
