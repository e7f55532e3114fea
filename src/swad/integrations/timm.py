"""SWAD with the interface of timm's `ModelEmaV3`, for timm training scripts. It does not import timm.

model_swad = ModelSwad(model, optimizer=optimizer)     # before the lines that resume
...
optimizer.step()
model_swad.update(model, step=num_updates)
...
model_swad.observe(validate(model, loader_eval, ...)["loss"])
validate(model_swad, loader_eval, ...)           # the averaged weights

In a `train.py` with tasks, `task.trainable_module_ema = model_swad` replaces `task.setup_ema(...)`; the task calls
`update`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from swad.averaging.average import Average
from swad.averaging.spans import Status
from swad.averaging.swad import SWAD
from swad.integrations._callback import caveats_once, require_options
from swad.tensors.names import unwrap

OPTIMIZER_KEY = "swad"


class ModelSwad(nn.Module):
    """A second model with the average as if training ended now.

    Use it where a timm script has `model_ema`: call `update(model, step)` after every optimizer step, call or validate
    it like a model, and pass it to a `CheckpointSaver`, which saves the averaged weights under `state_dict_ema`. One
    line is new: `observe(loss)` after every evaluation of the *live* model returns when to stop.

    `module` is an ordinary model in eval mode. It is updated when it is read, and only if the average has changed, so
    it costs nothing until then. Before the first update it has the initial weights; before the valley is confirmed,
    reading it warns once (`swad.NeverConvergedWarning`). Build it before DDP and compilation, like `ModelEmaV3`.

    **Resume.** `--resume` of timm restores the model, the optimizer, and weights in `module`, none of which is an
    average: its state is sums. With `optimizer`, the state travels in that of the optimizer, under "swad", so timm's
    checkpoints hold it and its own lines restore it exactly, if they run after this object is built. Otherwise a
    warning says that the average starts again. In a script of your own, save and load `state_dict()`, which is that
    state and not the averaged weights. `swad.averaged_weights("last.pth.tar")` reads those.

    Args:
        model: The model to follow.
        optimizer: The optimizer whose state in checkpoints has that of the average.
        device: Device of the second model. By default the model's. (`offload=True` moves the sums to the host.)
        average: Another class, e.g. `average=swad.SMA, start=100`. By default `swad.SWAD`.
        options: Options of that class.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        device: torch.device | str | None = None,
        average: Callable[..., Average] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        build: Callable[..., Average] = SWAD if average is None else average
        require_options(build, options)
        self.averager = build(model, **options)
        second = copy.deepcopy(unwrap(model)).eval().requires_grad_(False)
        self._second = (second.to(device),)  # in a tuple, or it would be a submodule and enter the state dict
        self._copied: Status | None = None  # the status whose average the second model has
        self._shown: set[type[Warning]] = set()
        second.register_load_state_dict_post_hook(self._on_weights_loaded)  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer = getattr(optimizer, "_base_optimizer", optimizer)  # timm's Lookahead
            optimizer.register_state_dict_post_hook(self._add_state)
            optimizer.register_load_state_dict_pre_hook(self._take_state)

    def update(self, model: nn.Module, step: int | None = None) -> None:
        """Take the weights after an optimizer step.

        Args:
            model: The model, which may also be wrapped (DDP, `torch.compile`).
            step: Unused; `ModelEmaV3` has it.
        """
        self.averager.update_parameters(model)

    def observe(self, loss: float | Tensor) -> Status:
        """Take the live model's validation loss after an evaluation and return the new status.

        Args:
            loss: One number, not negative: the mean over the validation examples.
        """
        return self.averager.observe(loss)

    @property
    def status(self) -> Status:
        """The phase of the trajectory, and what is averaged if training ends now."""
        return self.averager.status

    @property
    def module(self) -> nn.Module:
        """The averaged model, up to date."""
        self._refresh()
        return self._second[0]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _refresh(self) -> None:
        # Not traced: timm compiles its `model_ema`, and the step would be a guard, so every update would compile again.
        status = self.status
        if self.averager.step and (self._copied is None or self._copied.spans != status.spans):
            with caveats_once(self.averager, self._shown):
                self.averager.copy_to(self._second[0])
            self._copied = status

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the averaged model."""
        self._refresh()
        return self._second[0](*args, **kwargs)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state of the average, which is all that `state_dict` contains."""
        return self.averager.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue exactly where the state was taken."""
        self.averager.load_state_dict(state)
        self._copied = None

    def _add_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state[OPTIMIZER_KEY] = self.get_extra_state()

    def _take_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if OPTIMIZER_KEY in state:
            self.set_extra_state(state.pop(OPTIMIZER_KEY))

    def _on_weights_loaded(self, module: nn.Module, incompatible_keys: Any) -> None:
        self._copied = None  # once there is an average, its weights are shown again
        if not self.averager.step:
            warnings.warn(
                "weights were loaded into ModelSwad.module, but not the state of the average, which starts again: "
                "build ModelSwad(model, optimizer=optimizer) before timm resumes the optimizer, and save with it",
                stacklevel=2,
            )
