"""The common part of the trainer callbacks: an average that is built when training starts and follows an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.arguments import require_choice, require_options
from swad.averaging.base import Average
from swad.averaging.semantics import Phase
from swad.averaging.swad import SWAD
from swad.averaging.tensors import is_sharded
from swad.averaging.valley import Status

MissingState = Literal["raise", "start"]


class AverageCallback:
    """Owns an average from the start of training on. The average stays readable when training is over."""

    def __init__(
        self, monitor: str, name: str, missing_state: MissingState, average: Callable[..., Average] | None, options: Any
    ) -> None:
        require_choice("missing_state", missing_state, get_args(MissingState))
        self.monitor, self.name, self.missing_state = monitor, name, missing_state
        self._build: Callable[..., Average] = SWAD if average is None else average
        self._options = dict(options)
        self._check_options()
        self._averager: Average | None = None
        self._hook: RemovableHandle | None = None

    def _check_options(self) -> None:
        """Raise for a misspelled option or value now, and not when training starts."""
        require_options(self._build, self._options)
        build = self._build
        if isinstance(build, type) and issubclass(build, Average) and not build.writes_files:
            patterns = ("include", "exclude")  # they name tensors of the real model
            options = {option: value for option, value in self._options.items() if option not in patterns}
            build(nn.LayerNorm(1), **options)  # a LayerNorm draws no random numbers

    @property
    def averager(self) -> Average:
        """The average, which exists from the start of training on."""
        if self._averager is None:
            raise RuntimeError("the average is built when training starts, and it has not started: train first")
        return self._averager

    @property
    def status(self) -> Status:
        """The phase of the trajectory, and what is averaged if training ends now."""
        return self.averager.status

    def averaged_state(self) -> dict[str, Tensor]:
        """Return the average as if training ended now, as a state dict of new tensors."""
        return self.averager.averaged_state()

    def average_parameters(self, model: nn.Module | None = None) -> AbstractContextManager[nn.Module]:
        """Swap the average into the model (or into `model`) for a block, and restore its weights after it."""
        return self.averager.average_parameters(model)

    def _start(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None) -> None:
        """Build the average on the prepared model, restore `state` if there is one, and follow the optimizer."""
        self._detach()
        self._averager = self._build(model, **self._options)
        if state is not None:
            self._averager.load_state_dict(state)
        self._hook = self._averager.attach(optimizer)

    def _detach(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _observe_once(self, loss: float | Tensor) -> Status | None:
        """Observe the loss, unless the weights have not changed since the last evaluation."""
        if self.averager.step == self.averager.observed_step:
            return None
        return self.averager.observe(loss)


def metrics(status: Status) -> dict[str, float]:
    """Return a status as numbers for a logger: the phase is 0 searching, 1 averaging, 2 stopped."""
    numbers: dict[str, float] = {"phase": list(Phase).index(status.phase), "n_averaged": status.n_averaged}
    optional = {"threshold": status.threshold, "start_step": status.start_step, "end_step": status.end_step}
    return numbers | {key: value for key, value in optional.items() if value is not None}


def gather_state(state: Any, keep: bool) -> Any:
    """Return the state with sharded tensors gathered, for files that one process writes. Every rank must call it.

    The tensors are gathered one at a time. Averages load such a state on any number of processes.

    Args:
        state: The state of an average.
        keep: Whether this rank needs the gathered tensors, in host memory.
    """
    if isinstance(state, Mapping):
        return {key: gather_state(value, keep) for key, value in state.items()}
    if isinstance(state, Tensor) and is_sharded(state):
        full = state.full_tensor()  # type: ignore[attr-defined]
        return full.cpu() if keep else torch.empty(0)
    return state
