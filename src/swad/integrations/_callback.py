"""The common part of the trainer callbacks: an average that is built when training starts and follows an optimizer."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.average import Average
from swad.averaging.batchnorm import ForwardFn, tracking_norms, update_bn
from swad.averaging.spans import Phase, Status
from swad.averaging.swad import SWAD
from swad.averaging.valley import LossValley
from swad.tensors.shards import is_sharded
from swad.tensors.swapping import is_swapped
from swad.util.names import did_you_mean, require_choice

MissingState = Literal["raise", "start"]


class AverageCallback:
    """Owns an average from the start of training on. The average stays readable when training is over."""

    def __init__(
        self,
        monitor: str,
        name: str,
        missing_state: MissingState,
        update_bn: bool | ForwardFn,
        average: Callable[..., Average] | None,
        options: Any,
    ) -> None:
        require_choice("missing_state", missing_state, get_args(MissingState))
        self.monitor, self.name, self.missing_state, self.update_bn = monitor, name, missing_state, update_bn
        self._build: Callable[..., Average] = SWAD if average is None else average
        self._options = dict(options)
        self._check_options()
        self._averager: Average | None = None
        self._hook: RemovableHandle | None = None
        self._norm_batches = 0  # how many batches the batch norms had seen when training started

    def _check_options(self) -> None:
        """Raise for a misspelled option or value now, and not when training starts."""
        require_options(self._build, self._options)
        build = self._build
        if isinstance(build, type) and issubclass(build, Average):
            patterns = ("include", "exclude")  # they name tensors of the real model
            options = {option: value for option, value in self._options.items() if option not in patterns}
            build(nn.LayerNorm(1), **options)  # a LayerNorm draws no random numbers

    @property
    def averager(self) -> Average:
        """The average, which exists from the start of training on."""
        if self._averager is None:
            raise RuntimeError("the average is built when training starts, which it has not yet: train first")
        return self._averager

    @property
    def status(self) -> Status:
        """The phase of the trajectory, and what is averaged if training ends now."""
        return self.averager.status

    def averaged_state(self) -> dict[str, Tensor]:
        """Return the average as if training ended now, as a state dict of new tensors."""
        return self.averager.averaged_state()

    def average_parameters(self, model: nn.Module | None = None) -> AbstractContextManager[nn.Module]:
        """Swap the average into the model for a block, and restore its weights after it.

        Args:
            model: The model to write to. By default the one that is trained.
        """
        return self.averager.average_parameters(model)

    def _start(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None) -> None:
        """Build the average on the prepared model, restore `state` if there is one, and follow the optimizer."""
        self._detach()
        self._averager = self._build(model, **self._options)
        if state is not None:
            self._averager.load_state_dict(state)
        self._hook = self._averager.attach(optimizer)
        self._norm_batches = _norm_batches(model)

    def _warn_about_swad(self, problem: str) -> None:
        """Warn about settings that do not suit SWAD; other averages need no evaluations."""
        if self._averager is not None and isinstance(self._averager.rule, LossValley):
            warnings.warn(problem, stacklevel=3)

    def _apply(self, model: nn.Module, loader: Iterable[Any], forward_fn: ForwardFn | None = None) -> None:
        """Copy the average into the model, and recompute its batch-norm statistics or warn that they are stale.

        Args:
            model: The model.
            loader: The training data.
            forward_fn: Calls the model with a batch; by default as `swad.update_bn` does.
        """
        trained_norms = _norm_batches(model) != self._norm_batches  # frozen statistics are never stale
        self.averager.copy_to(model)
        if not trained_norms:
            return
        if self.update_bn:
            update_bn(loader, model, forward_fn=forward_fn)
            _average_over_ranks(model)
        elif self.averager.tracked.buffer_mode == "copy":
            warnings.warn(
                "the batch-norm statistics belong to the last averaged update, not to the averaged weights: pass "
                "update_bn=True to recompute them from the training data, or call swad.update_bn",
                stacklevel=3,
            )

    def _detach(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _observe_once(self, loss: float | Tensor) -> Status | None:
        """Observe the loss, unless it is that of an average, or of weights that were evaluated before."""
        if is_swapped(self.averager.tracked.model) or self.averager.step == self.averager.trajectory.observed_step:
            return None
        return self.averager.observe(loss)


def require_options(build: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise if `build(model, **options)` is not a valid call, and name the options there are."""
    if not callable(build):
        raise TypeError(f"average must be a class such as swad.EMA, got {build!r}: pass the class and its options")
    signature = inspect.signature(build)
    try:
        signature.bind(None, **options)
    except TypeError as error:
        known = list(signature.parameters)[1:]
        unknown = [option for option in options if option not in known]
        hints = [hint for hint in (did_you_mean(option, known) for option in unknown) if hint]
        rule = f"{getattr(build, '__name__', 'the average')} takes {', '.join(known)}"
        raise TypeError(f"{rule}; {error}{f': {hints[0]}' if hints else ''}") from None


def _norm_batches(model: nn.Module) -> int:
    counts = (norm.num_batches_tracked for norm in tracking_norms(model))
    return sum(int(count) for count in counts if count is not None)


def _average_over_ranks(model: nn.Module) -> None:
    """Give every rank the same statistics: each has seen its part of the training data."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    for norm in tracking_norms(model):
        for statistic in (norm.running_mean, norm.running_var):
            if statistic is not None:
                dist.all_reduce(statistic)
                statistic.div_(dist.get_world_size())


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
