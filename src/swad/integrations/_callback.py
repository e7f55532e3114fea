"""What the callbacks of trainers share: an average that is built late, follows an optimizer and sees losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.base import Average
from swad.averaging.semantics import Phase
from swad.averaging.swad import SWAD
from swad.averaging.tensors import is_sharded
from swad.averaging.valley import Status

MissingState = Literal["raise", "start"]


class AverageDriver:
    """Own an average from the start of a training on; what it reads stays readable when the training is over."""

    def __init__(
        self, monitor: str, name: str, missing_state: MissingState, average: Callable[..., Average] | None, options: Any
    ) -> None:
        if missing_state not in ("raise", "start"):
            raise ValueError(f"missing_state must be one of raise, start; got {missing_state!r}")
        self.monitor, self.name, self.missing_state = monitor, name, missing_state
        self._build: Callable[..., Average] = SWAD if average is None else average
        self._options = dict(options)
        inspect.signature(self._build).bind(None, **self._options)  # a misspelt option fails here, not hours later
        self._averager: Average | None = None
        self._hook: RemovableHandle | None = None

    @property
    def averager(self) -> Average:
        """The average; it exists from the start of training on."""
        if self._averager is None:
            raise RuntimeError("the average is built when training starts, and it has not started: train first")
        return self._averager

    @property
    def status(self) -> Status:
        """Where the trajectory is, and what would be averaged if training ended now."""
        return self.averager.status

    def averaged_state(self) -> dict[str, Tensor]:
        """The average as if training ended now, as a state dict of new tensors."""
        return self.averager.averaged_state()

    def average_parameters(self, model: nn.Module | None = None) -> AbstractContextManager[nn.Module]:
        """Put the average into the model (or into `model`) for a block, and the weights it had back after it."""
        return self.averager.average_parameters(model)

    def _start(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None) -> None:
        """Build the average on the model as it is now, go on from `state` if there is one, and follow the optimizer."""
        self._let_go()
        self._averager = self._build(model, **self._options)
        if state is not None:
            self._averager.load_state_dict(state)
        self._hook = self._averager.attach(optimizer)

    def _let_go(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _see(self, loss: float | Tensor) -> Status | None:
        """Observe, unless the weights are those of the last evaluation: then there is nothing new to learn."""
        if self.averager.step == self.averager.observed_step:
            return None
        return self.averager.observe(loss)


def metrics(status: Status) -> dict[str, float]:
    """A status as numbers for a logger: the phase is 0 searching, 1 averaging, 2 stopped."""
    numbers: dict[str, float] = {"phase": list(Phase).index(status.phase), "n_averaged": status.n_averaged}
    optional = {"threshold": status.threshold, "start_step": status.start_step, "end_step": status.end_step}
    return numbers | {key: value for key, value in optional.items() if value is not None}


def whole(state: Any, keep: bool) -> Any:
    """The state with sharded tensors put together, for files that one process writes; every rank must call it.

    One tensor at a time, to host memory, and only where `keep` says so. Averages load such a state on any
    number of processes.
    """
    if isinstance(state, Mapping):
        return {key: whole(value, keep) for key, value in state.items()}
    if isinstance(state, Tensor) and is_sharded(state):
        full = state.full_tensor()  # type: ignore[attr-defined]
        return full.cpu() if keep else torch.empty(0)
    return state
