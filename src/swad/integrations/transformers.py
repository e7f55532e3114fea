"""SWAD as a callback of the Hugging Face Trainer.

from swad.integrations.transformers import SWADCallback

callback = SWADCallback()
trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[callback])
trainer.train()                                  # model holds the average now
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from swad.averaging.base import Average
from swad.integrations import _files
from swad.integrations._callback import AverageDriver, MissingState, whole

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError('the Hugging Face callback needs transformers: pip install "swad[transformers]"') from error


class SWADCallback(AverageDriver, TrainerCallback):  # type: ignore[misc]
    """Average the weights of every optimizer step inside the valley of the evaluation loss.

    The Trainer evaluates the live model (`eval_strategy="steps"`); its `eval_loss` (or another `monitor`, such
    as `eval_<dataset>_loss` with several evaluation sets) decides. Steps are counted by a hook on the
    optimizer inside accelerate's, so gradient accumulation and steps a scaler skips need no care. An evaluation
    before the first step (`eval_on_start`) and those outside `train` are not observed.

    Training stops when the valley does (`stop_training`). When `train` ends, the average is put into the model
    (`apply_at_end`), also over the best model that `load_best_model_at_end` brought back; `trainer.save_model()`
    then saves it. To compare without that:

        with callback.average_parameters():
            trainer.evaluate()

    **Checkpoints** hold the live weights. The average is written beside them as `swad.safetensors`, by the
    process that saves, and `train(resume_from_checkpoint=...)` goes on exactly. The Trainer does not tell
    callbacks which folder it resumes from, so the trainer's state remembers where the file was written and an
    identity it carries; a folder that has moved since is named with `resume_from`. If no such file is found,
    that is an error, unless `missing_state="start"` says to begin a new average there.

    `average` takes another class (`average=swad.EMA, decay=0.999`); further options are that class's, by
    default those of `swad.SWAD`. `name` keeps the files of several callbacks apart.
    """

    def __init__(
        self,
        monitor: str = "eval_loss",
        *,
        stop_training: bool = True,
        apply_at_end: bool = True,
        missing_state: MissingState = "raise",
        resume_from: str | os.PathLike[str] | None = None,
        name: str = "swad",
        average: Callable[..., Average] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(monitor, name, missing_state, average, options)
        self.stop_training, self.apply_at_end = stop_training, apply_at_end
        self.resume_from = resume_from
        self._training = False
        self._first_step = 0  # updates made when this call of train began
        self._monitored = False
        self._unmonitored: set[str] = set()
        self._identity = ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> TrainerControl:
        """Build the average on the prepared model, or read back where it was, and follow the optimizer."""
        resumed = self._resumed(args, state) if state.global_step else None
        self._start(trainer["model"], trainer["optimizer"], resumed)
        self._training, self._monitored, self._unmonitored = True, False, set()
        self._first_step = self.averager.step
        # The state is saved with every checkpoint: it says which file belongs to it, and where that was.
        self._identity = uuid.uuid4().hex
        state.stateful_callbacks[self.name] = {
            "identity": self._identity,
            "output_dir": os.path.abspath(args.output_dir),
        }
        if self.stop_training and self.status.should_stop:
            control.should_training_stop = True
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> TrainerControl:
        """Observe the loss; with several evaluation sets, of the one that is monitored."""
        if not self._training or self.averager.step == self._first_step:
            return control
        metrics: Mapping[str, float] = trainer["metrics"]
        if self.monitor not in metrics:
            self._unmonitored |= {key for key in metrics if key.startswith("eval_")}
            return control
        self._monitored = True
        status = self._see(metrics[self.monitor])
        if status is not None and status.should_stop and self.stop_training:
            control.should_training_stop = True
        return control

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        """Refuse to train on when an evaluation is over and the monitored loss was in none of its sets."""
        if self._unmonitored and not self._monitored:
            raise ValueError(
                f"the monitored loss must be among the metrics of an evaluation, and {self.monitor!r} is not; there "
                f"are {', '.join(map(repr, sorted(self._unmonitored)))}: set monitor to one of them"
            )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any) -> None:
        """Write the average beside the checkpoint that was just saved."""
        if state.is_hyper_param_search:
            return  # trials are saved in folders a callback is not told, and are not resumed
        saved = whole(self.averager.state_dict(), keep=args.should_save)
        if args.should_save:
            _files.write(self._file(args.output_dir, state), saved, f"{self._identity}:{state.global_step}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trainer: Any
    ) -> None:
        """Put the average into the model."""
        self._let_go()
        self._training = False
        model: nn.Module = trainer["model"]
        if self.apply_at_end and self.averager.step:
            self.averager.copy_to(model)

    def _file(self, output_dir: str, state: TrainerState) -> Path:
        return Path(output_dir, f"checkpoint-{state.global_step}", f"{self.name}.safetensors")

    def _resumed(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any] | None:
        """The state of the average in the checkpoint that `state` was read from."""
        known = state.stateful_callbacks.get(self.name)
        if known is None:
            if self.missing_state == "start":
                return None
            raise ValueError(
                f"a resumed average needs its state, and the checkpoint of step {state.global_step} was saved "
                f"without this callback: pass missing_state='start' to begin averaging here"
            )
        named = [
            Path(os.fspath(p), f"{self.name}.safetensors") for p in (self.resume_from, args.resume_from_checkpoint) if p
        ]
        places = [*named, self._file(known["output_dir"], state), self._file(args.output_dir, state)]
        wanted = f"{known['identity']}:{state.global_step}"  # of this training, and of this very step
        for place in dict.fromkeys(places):
            if place.is_file() and _files.identity(place) == wanted:
                return _files.read(place)
        if self.missing_state == "start":
            return None
        raise FileNotFoundError(
            f"a resumed average needs its state, and that of step {state.global_step} is not at "
            f"{' or '.join(dict.fromkeys(map(str, places)))}: name the folder of the checkpoint in resume_from, "
            f"or pass missing_state='start' to begin averaging here"
        )
