"""Follow a run while it trains: pass a `RunCallback` to `train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from swad.averaging.spans import Status
    from swad.testbed.training.resolved_config import ResolvedConfig
    from swad.testbed.training.result import RunResult


class RunCallback:
    """Receives the events of a run, in the main process only.

    Subclass it and override the events of interest; the methods of this class do nothing. Any object with some of
    these methods will do as well.
    """

    def on_start(self, config: ResolvedConfig, total: int, step: int) -> None:
        """Training starts, or is resumed after `step` of `total` steps."""

    def on_log(self, message: str) -> None:
        """Log how the run is computed: a choice that was made, or a fallback and its reason."""

    def on_progress(self, description: str, done: int, total: int | None) -> None:
        """Work before the first step has progressed; the signature is that of `swad.util.progress.Progress`."""

    def on_step(self, step: int, loss: Tensor) -> None:
        """A step was made. Reading the loss waits for the device, so read it rarely.

        The next step may write to the same tensor: clone it to keep it.
        """

    def on_evaluation(
        self,
        step: int,
        train_loss: float,
        losses: Mapping[str, float],
        accuracies: Mapping[str, float],
        statuses: Mapping[str, Status],
    ) -> None:
        """The live weights were evaluated.

        Args:
            step: Steps made so far.
            train_loss: Mean training loss since the last evaluation.
            losses: Validation loss of every source domain.
            accuracies: Validation accuracy of every source domain, from 0 to 1.
            statuses: Status of every average.
        """

    def on_stage(self, description: str) -> None:
        """Work after the last step starts, such as "evaluating swad"."""

    def on_end(self, result: RunResult) -> None:
        """The run is finished. Also called for a run that was finished before."""


EVENTS = tuple(name for name in vars(RunCallback) if name.startswith("on_"))
"""The names of all events."""


def combine(callbacks: Sequence[object]) -> RunCallback:
    """Return a callback that passes every event to those of several objects that have a method for it.

    >>> class Steps:
    ...     def on_step(self, step, loss):
    ...         print(step, loss)
    >>> combine([Steps(), RunCallback()]).on_step(1, 0.5)
    1 0.5
    """
    combined = RunCallback()
    for callback in callbacks:
        if not any(callable(getattr(callback, name, None)) for name in EVENTS):
            raise TypeError(f"a callback needs at least one of the methods {', '.join(EVENTS)}, got {callback!r}")
    for name in EVENTS:
        methods = [method for callback in callbacks if callable(method := getattr(callback, name, None))]
        setattr(combined, name, partial(_call_all, methods))
    return combined


def _call_all(methods: Sequence[Callable[..., object]], *arguments: Any) -> None:
    for method in methods:
        method(*arguments)
