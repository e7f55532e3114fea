"""The common part of the trainer callbacks: an average that is built when training starts and follows an optimizer."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.average import Average
from swad.averaging.rule import FalseStartWarning, Rule
from swad.averaging.spans import Phase, Status
from swad.averaging.valley import LossValley
from swad.tensors.batch_norms import ForwardFn, batch_norms, update_bn
from swad.tensors.shards import is_sharded
from swad.tensors.swapping import is_swapped
from swad.util.names import did_you_mean, require_choice

MissingState = Literal["raise", "start"]
Evaluate = Literal["live", "average"]

LIVE = "live"
"""The key of the live weights in the state of an average, where a checkpoint has the average in their place."""

_followers: WeakKeyDictionary[nn.Module, WeakSet[FollowedTraining]] = WeakKeyDictionary()


class FollowedTraining:
    """Owns an average from the start of training on. The average stays readable when training is over."""

    def __init__(
        self,
        average: Callable[..., Average],
        options: Mapping[str, Any],
        evaluate: Evaluate,
        monitor: str | None,
        apply_at_end: bool,
        update_bn: bool | ForwardFn,
        missing_state: MissingState,
        name: str | None,
    ) -> None:
        require_choice("missing_state", missing_state, get_args(MissingState))
        require_choice("evaluate", evaluate, get_args(Evaluate))
        self.evaluate, self.monitor, self.missing_state = evaluate, monitor, missing_state
        self.apply_at_end, self.update_bn = apply_at_end, update_bn
        self._build, self._options = average, dict(options)
        self._check_options()
        self.name = getattr(average, "__name__", "average").lower() if name is None else name
        self._averager: Average | None = None
        self._hook: RemovableHandle | None = None
        self._norm_batches = 0  # how many batches the batch norms had seen when training started
        self._shown: set[type[Warning]] = set()  # what was warned of in this training
        self._swap: AbstractContextManager[nn.Module] | None = None  # while the model holds the evaluated average

    def _check_options(self) -> None:
        """Raise for a misspelled option or value now, and not when training starts."""
        require_options(self._build, self._options)
        build = self._build
        if isinstance(build, type) and issubclass(build, Average):
            patterns = ("include", "exclude")  # they name tensors of the real model
            options = {option: value for option, value in self._options.items() if option not in patterns}
            self._check_rule(build(nn.LayerNorm(1), **options).rule)  # a LayerNorm draws no random numbers
        if self.evaluate == "average" and self.monitor is not None:
            raise ValueError(
                "the monitored loss is the live model's, but evaluate='average' evaluates the average: leave one out"
            )
        if self.evaluate == "average" and self.update_bn:
            raise ValueError(
                "evaluate='average' would recompute the batch-norm statistics from the training data at every "
                "evaluation: pass buffers='average' instead of update_bn"
            )

    def _check_rule(self, rule: Rule) -> None:
        if not isinstance(rule, LossValley):
            return
        if self.evaluate == "average":
            raise ValueError(
                "SWAD decides by the live model's loss, so evaluate='average' would need a second validation: validate "
                "inside `with callback.average_parameters():`, or take AverageCallback(swad.EMA, evaluate='average')"
            )
        if self.monitor is None:
            raise ValueError("SWAD needs the validation loss of the live model: use SWADCallback, which monitors it")

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

    # -- training -----------------------------------------------------------------------------------------

    def _start(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None) -> None:
        """Build the average on the prepared model, restore `state` if there is one, and follow the optimizer."""
        self._detach()
        self._averager = self._build(model, **self._options)
        self._check_rule(self._averager.rule)
        if state is not None:
            self._averager.load_state_dict(state)
            if LIVE in state:  # the checkpoint has the average in place of the weights to continue from
                self._averager.tracked.load_live_state(state[LIVE])
        self._require_alone()
        self._hook = self._averager.attach(optimizer)
        self._norm_batches = _norm_batches(model)
        self._shown = set()

    def _require_alone(self) -> None:
        """Raise if another callback needs the live model at the evaluations that this one has of its average."""
        model = self.averager.tracked.model
        following = _followers.setdefault(model, WeakSet())
        pairs = [pair for each in following if each._hook for pair in ((self, each), (each, self))]
        following.add(self)
        for one, other in pairs:
            if one.evaluate == "average" and (other.evaluate == "average" or other.monitor or other._takes_weights):
                raise ValueError(
                    f"evaluations are of one average with evaluate='average', as {one.name!r} has, but {other.name!r} "
                    f"needs its own, or the live model: use one of them, or evaluate='live'"
                )

    @property
    def _takes_weights(self) -> bool:
        """Whether the average is of the weights at evaluations, whatever the loss."""
        return self.monitor is None and type(self.averager.rule).observe is not Rule.observe

    def _state(self, keep: bool, with_live: bool) -> dict[str, Any]:
        """Return the state for a checkpoint, gathered. Every rank must call it.

        Args:
            keep: Whether this rank writes it.
            with_live: Add the live weights, because the checkpoint has the average in their place.
        """
        state = self.averager.state_dict()
        if with_live:
            state[LIVE] = self.averager.tracked.live_state()
        gathered: dict[str, Any] = gather_state(state, keep)
        return gathered

    def _warn_about_swad(self, problem: str) -> None:
        """Warn about settings that do not suit SWAD; other averages need no evaluations."""
        if self._averager is not None and isinstance(self._averager.rule, LossValley):
            warnings.warn(problem, stacklevel=3)

    def _observe_once(self, loss: float | Tensor, step: int) -> Status | None:
        """Observe the loss, unless it is that of an average, or of weights that were evaluated before."""
        if is_swapped(self.averager.tracked.model) or self.averager.step == self.averager.trajectory.observed_step:
            return None
        status = self.averager.observe(loss)
        if status.warning and FalseStartWarning not in self._shown:
            self._shown.add(FalseStartWarning)
            if is_main_process():
                problem = f"{self.name} at step {step}: {status.warning}"
                warnings.warn(
                    f"{problem}, e.g. SWADCallback(valley=swad.LossValley(start={step}))",
                    FalseStartWarning,
                    stacklevel=3,
                )
        return status

    def _before_evaluation(self) -> None:
        """Take the weights, for an average of those at evaluations, and swap the average in if it is evaluated."""
        if self._takes_weights and self.averager.step > self.averager.trajectory.observed_step:
            self.averager.observe(math.nan)  # such a rule looks at no loss
        self._show_average()

    def _show_average(self) -> None:
        """Let the model hold the average until `_show_live`, if evaluations and checkpoints are of the average."""
        if self.evaluate == "live" or self._swap is not None or not self.status.n_averaged:
            return
        self._warn_of_stale_norms(self.averager.tracked.model)
        self._swap = self.averager.average_parameters()
        self._swap.__enter__()

    def _show_live(self) -> None:
        swap, self._swap = self._swap, None
        if swap is not None:
            swap.__exit__(None, None, None)

    def _detach(self) -> None:
        self._show_live()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    # -- the end of training ------------------------------------------------------------------------------

    def _copy(self) -> None:
        """Copy the average into the model."""
        with caveats_once(self.averager, self._shown):
            self.averager.copy_to()

    def _apply(self, model: nn.Module, loader: Iterable[Any], forward_fn: ForwardFn | None = None) -> None:
        """Copy the average into the model, and recompute its batch-norm statistics or warn that they are stale.

        Args:
            model: The model.
            loader: The training data.
            forward_fn: Calls the model with a batch; by default as `swad.update_bn` does.
        """
        trained_norms = _norm_batches(model) != self._norm_batches
        if not self.update_bn:
            self._warn_of_stale_norms(model)
        self._copy()
        if self.update_bn and trained_norms:
            update_bn(loader, model, forward_fn=forward_fn)
            _average_over_ranks(model)

    def _warn_of_stale_norms(self, model: nn.Module) -> None:
        frozen = _norm_batches(model) == self._norm_batches  # then the statistics are those of all weights
        if frozen or self.averager.tracked.buffer_mode == "average" or UserWarning in self._shown:
            return
        self._shown.add(UserWarning)
        advice = "update_bn=True to recompute them from the training data, or call swad.update_bn"
        if self.evaluate == "average":
            advice = "buffers='average' to average them too"
        warnings.warn(
            f"the batch-norm statistics belong to the last averaged update, not to the averaged weights: pass {advice}",
            stacklevel=4,
        )


@contextmanager
def caveats_once(average: Average, shown: set[type[Warning]]) -> Iterator[None]:
    """Show a caveat of reading the average only if its class is not among those `shown`, to which it is added."""
    caveat = average.rule.caveat(average.step)
    with warnings.catch_warnings():
        if caveat is not None and type(caveat) in shown:
            warnings.simplefilter("ignore", type(caveat))
        yield
    if caveat is not None:
        shown.add(type(caveat))


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


def is_main_process() -> bool:
    """Whether this process writes files and warns for all."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _norm_batches(model: nn.Module) -> int:
    counts = (norm.num_batches_tracked for norm in batch_norms(model))
    return sum(int(count) for count in counts if count is not None)


def _average_over_ranks(model: nn.Module) -> None:
    """Give every rank the same statistics: each has seen its part of the training data."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    for norm in batch_norms(model):
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
