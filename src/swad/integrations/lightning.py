"""SWAD, and any other average, as a callback of the Lightning Trainer.

from swad.integrations.lightning import AverageCallback, SWADCallback

callback = SWADCallback(monitor="val_loss")      # or AverageCallback(swad.EMA, decay=0.999, evaluate="average")
trainer = Trainer(callbacks=[callback], val_check_interval=100)
trainer.fit(model, train_loader, val_loader)     # afterwards the model has the averaged weights
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch

from swad.averaging.average import Average
from swad.averaging.swad import SWAD
from swad.integrations._callback import LIVE, Evaluate, FollowedTraining, MissingState, is_main_process, metrics
from swad.tensors.batch_norms import ForwardFn, call_model
from swad.tensors.swapping import is_swapped

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
except ImportError as error:
    raise ImportError('the Lightning callback needs lightning: pip install "swad[lightning]"') from error


class AverageCallback(FollowedTraining, Callback):  # type: ignore[misc]
    """Average the weights while Lightning trains; afterwards the module has the average.

        AverageCallback(swad.EMA, decay=0.999, evaluate="average")

    The average is built when training starts, as `average(module, **options)`. A hook on the optimizer counts the
    steps, so gradient accumulation and steps that a scaler skips are counted correctly. The callback works on one
    device, under DDP and under ModelParallelStrategy (FSDP2), where each rank averages its shard.

    **Checkpoints.** Those written during `fit` have the live weights in `state_dict` and the state of the average under
    this callback; `fit(ckpt_path=...)` continues exactly. With `evaluate="average"`, validations are of the average,
    and so is `state_dict`: `ModelCheckpoint(monitor=...)` saves the weights that it scored, and the live weights to
    continue from are in the state of this callback. `swad.averaged_weights(path)` reads the average out of any of them.
    A checkpoint saved after `fit` (`trainer.save_checkpoint`) has the average in `state_dict` if it was copied into the
    module, and cannot be resumed. Under FSDP2 rank 0 gathers the average to write it. Lightning does not repeat a
    validation that was due at the step at which a checkpoint was written before it
    (`ModelCheckpoint(every_n_train_steps=...)` without `monitor`): such a checkpoint resumes without that evaluation.

    `trainer.test(ckpt_path="best")` tests the weights in that checkpoint. If those are live weights, a warning says so,
    and the module has the average again afterwards if it had it. After `fit`, `trainer.test(model)` tests the average.

    Args:
        average: The class of the average, or a function of the module that returns one.
        evaluate: "live", or "average" to validate and save the average.
        monitor: The logged validation loss of the live model, for a rule of your own that uses it.
        apply_at_end: Copy the average into the module when `fit` ends.
        update_bn: Recompute the batch-norm statistics from one pass over the training data after copying the average.
            True calls the module with the first item of a batch; a function is called with the module and the batch.
            By default a warning says that they are stale. Frozen statistics need nothing.
        missing_state: What to do when a resumed checkpoint contains no average: "raise", or "start" a new one.
        optimizer_index: The optimizer to follow, if the module has several: the one that steps last.
        name: Its name in checkpoints and logs, by default that of the class in lower case; several callbacks need
            different ones.
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
        optimizer_index: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(average, options, evaluate, monitor, apply_at_end, update_bn, missing_state, name)
        self.optimizer_index = optimizer_index
        self.stop_training = False
        self._applied = False
        self._final_buffers: list[torch.Tensor] = []  # of the module with the average
        self._overwritten = False  # a checkpoint was loaded over the average, for one evaluation
        self._pending: Mapping[str, Any] | None = None  # restored before the model is set up

    @property
    def state_key(self) -> str:
        """The key of the state in checkpoints: only the name, so that changed settings are found and refused."""
        return f"AverageCallback[{self.name}]"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset before every fit, also after `trainer.validate(ckpt_path=...)`, which restores callbacks too."""
        self._pending = None
        if stage == "fit":
            self._averager, self._applied = None, False

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume without an average, and say if an evaluation is not of the average."""
        saved = checkpoint.get("callbacks", {})
        fn = trainer.state.fn
        if fn == "fit" and self.state_key not in saved and self.missing_state == "raise":
            raise ValueError(
                f"a resumed average needs its state, but this checkpoint has none under {self.state_key!r}, "
                f"only {', '.join(map(repr, saved)) or 'nothing'}: pass missing_state='start' to begin averaging here"
            )
        if fn == "fit" or self.state_key not in saved or _has_average(saved[self.state_key]):
            return
        self._overwritten = self._applied and pl_module is self.averager.tracked.model
        call, advice = f"trainer.{fn.value}", "load swad.averaged_weights(path) into the module instead"
        if self._overwritten:
            advice = f"{call}(model) evaluates the average, which the module has again after this"
        rank_zero_warn(f"{call}(ckpt_path=...) evaluates the live weights in the checkpoint, not the average: {advice}")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts: Lightning restores callbacks before it sets up the model."""
        self._pending = state_dict

    def state_dict(self) -> dict[str, Any]:
        """Return the average for a checkpoint, as strings and tensors."""
        if self._averager is None:
            # Before training there is no average. Lightning leaves out an empty state, which would not be resumed.
            return dict(self._pending or {"average": None, "applied": False})
        # In a block of `average_parameters`, too, the checkpoint gets the average in place of the live weights.
        held = is_swapped(self._averager.tracked.model) and self._swap is None
        applied = self._applied or held
        with_live = self.evaluate == "average" and not applied and self.status.n_averaged > 0
        return {"average": self._state(is_main_process(), with_live), "applied": applied}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the average in place of the live weights, which are in the state of this callback then."""
        if LIVE not in (checkpoint["callbacks"][self.state_key]["average"] or {}):
            return
        with nullcontext() if self._swap else self.average_parameters():
            saved = trainer.strategy.lightning_module_state_dict()
            # Copies, because the module gets its live weights back before the file is written.
            checkpoint["state_dict"] = {
                key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in saved.items()
            }

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Build the average on the model that the strategy has set up, and follow the optimizer."""
        self._require_settings(trainer, pl_module)
        if self._pending is not None and self._pending["applied"]:
            raise ValueError(
                "training resumes from live weights, but this checkpoint has the average in their place: "
                "resume from one that was saved during fit"
            )
        state = None if self._pending is None else self._pending["average"]
        self._start(pl_module, self._optimizer(trainer), state)
        self._pending = None
        if not trainer.enable_validation:
            self._warn_about_swad(
                "SWAD finds the updates to average by the validation loss, but this training has no validation: "
                "pass a validation dataloader to fit, and define validation_step"
            )
        if self.stop_training and self.status.should_stop:
            trainer.should_stop = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap the average in, if it is what is validated."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._before_evaluation()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Observe the loss. Lightning calls checkpoint callbacks last, so their checkpoints include it."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self._show_live()
        if self.monitor is None:
            return
        logged = trainer.callback_metrics
        if self.monitor not in logged:
            raise ValueError(
                f"the monitored loss must be logged in every validation, but {self.monitor!r} is not; "
                f"got {', '.join(map(repr, logged)) or 'no metrics'}: log it, or set monitor"
            )
        status = self._observe_once(logged[self.monitor], trainer.global_step)
        if status is None:
            return
        numbers = {f"{self.name}/{key}": value for key, value in metrics(status).items()}
        logged.update({key: torch.tensor(float(value)) for key, value in numbers.items()})
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
        if self.stop_training and status.should_stop:
            trainer.should_stop = True
            rank_zero_info(f"{self.name} stops training at step {trainer.global_step}: {status.reason}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy the average into the module, now that no checkpoint callback can save it as live weights."""
        self._detach()
        if self.apply_at_end and self._averager is not None and self.status.n_averaged:
            self._apply(pl_module, *self._training_data(trainer))
            self._applied = True
            self._final_buffers = [buffer.clone() for buffer in pl_module.buffers()]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the module the average again after an evaluation of a checkpoint."""
        if self._overwritten:
            self._overwritten = False
            self._copy()
            for buffer, final in zip(pl_module.buffers(), self._final_buffers, strict=True):
                buffer.copy_(final)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop following the optimizer, and give the module its live weights back."""
        self._detach()

    def _require_settings(self, trainer: Trainer, module: LightningModule) -> None:
        """Raise now for what would go wrong later."""
        weights_only = [getattr(saver, "save_weights_only", False) for saver in trainer.checkpoint_callbacks]
        if self.evaluate == "average" and any(weights_only):
            raise ValueError(
                "evaluate='average' puts the average into checkpoints, but Lightning asks no callback about those of "
                "ModelCheckpoint(save_weights_only=True): leave save_weights_only out"
            )
        if self.update_bn is True and type(module).forward is LightningModule.forward:
            raise ValueError(
                f"update_bn=True calls the module with a batch, but {type(module).__name__} defines no forward: "
                f"define it, or pass a function update_bn(module, batch)"
            )
        if self.update_bn and isinstance(trainer.train_dataloader, list | tuple | dict):
            raise ValueError(
                "update_bn needs one training dataloader, but there are several: call swad.update_bn after fit"
            )

    def _training_data(self, trainer: Trainer) -> tuple[Iterable[Any], ForwardFn]:
        """Return the batches of one epoch, and a function that calls the module with one of them."""
        n_batches = trainer.num_training_batches
        forward_fn = self.update_bn if callable(self.update_bn) else call_model

        def forward(module: torch.nn.Module, batch: Any) -> Any:
            # What Lightning does with a batch before it calls training_step.
            batch = trainer.precision_plugin.convert_input(batch)
            batch = trainer.lightning_module._on_before_batch_transfer(batch)
            with trainer.precision_plugin.forward_context():
                return forward_fn(module, trainer.strategy.batch_to_device(batch))

        return islice(trainer.train_dataloader, int(n_batches) if math.isfinite(n_batches) else None), forward

    def _optimizer(self, trainer: Trainer) -> torch.optim.Optimizer:
        optimizers: list[torch.optim.Optimizer] = trainer.optimizers
        if len(optimizers) == 1 and self.optimizer_index is None:
            return optimizers[0]
        if self.optimizer_index is None or not 0 <= self.optimizer_index < len(optimizers):
            raise ValueError(
                f"an average follows one optimizer, but the module has {len(optimizers)}; "
                f"got optimizer_index={self.optimizer_index}: pass the one that steps last, counted from 0"
            )
        return optimizers[self.optimizer_index]


class SWADCallback(AverageCallback):
    """Average the weights of every optimizer step inside the valley of a validation loss logged by the module.

    The loss is the live model's: log it in `validation_step` with `self.log("val_loss", loss)`, and with
    `sync_dist=True` if there are several processes, which must agree on it. The sanity check is not observed. Steps,
    strategies and checkpoints are those of `AverageCallback`.

    To evaluate the average during training:

        with callback.average_parameters():
            trainer.validate(model, val_loader)

    **Logged metrics**: `swad/phase` (0 searching, 1 averaging, 2 stopped), `swad/threshold`, `swad/n_averaged`,
    `swad/start_step`, `swad/end_step`. A warning says when the start of the valley was probably a false one.

    Args:
        monitor: The logged validation loss.
        stop_training: Stop when the valley ends.
        name: The prefix of the logged metrics; several callbacks need different names.
        options: Arguments of `AverageCallback`, and options of `swad.SWAD`.
    """

    def __init__(
        self, monitor: str = "val_loss", *, stop_training: bool = True, name: str = "swad", **options: Any
    ) -> None:
        super().__init__(SWAD, monitor=monitor, name=name, **options)
        self.stop_training = stop_training

    @property
    def state_key(self) -> str:
        """The key of the state in checkpoints."""
        return f"SWADCallback[{self.name}]"


def _has_average(saved: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with this state of the callback has the average in `state_dict`."""
    return saved["applied"] or LIVE in (saved["average"] or {})
