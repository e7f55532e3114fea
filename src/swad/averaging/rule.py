"""What an average decides: which updates it averages. Numbers and losses in, spans of updates out, no tensors.

`swad.averaging.span_sums` adds up the weights that a rule asks for, in one way for all of them. A rule is the file to
read to know what an average is: `algorithm1` is the paper, `published_code` its published code, `window` SWA, `decay`
EMA.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from swad.averaging.spans import FOREVER, Phase, Span, Status


class NeverConvergedWarning(UserWarning):
    """The average was read before its valley was confirmed; the text says what was averaged instead."""


class FalseStartWarning(UserWarning):
    """The average was read although its valley was probably none: the loss fell much further after it began."""


class Rule(ABC):
    """Which updates of a training are averaged.

    A subclass answers `spans` and `needed`, and `observe` if validation losses matter. Its attributes are its state, so
    they are plain values: numbers, strings, lists and dicts of them. A short one to copy is
    `swad.averaging.latest.Latest`; `swad.Average(model, rule)` follows a training with it.
    """

    dense = True
    """It averages every update of its spans with the same weight, so that the sum it shares with others is enough.
    Otherwise it has a sum of its own, to which the updates that `takes` names are added, and which it may move."""

    moves = False
    """Its mean moves toward the weights of every update by `share`, so that later updates count more (an EMA)."""

    weighs_segments = False
    """It divides the sum between two evaluations by its length, so that each counts the same."""

    max_segment = FOREVER
    """Updates after which a sum must be closed, for a rule that needs no evaluations, which otherwise close it."""

    settings: ClassVar[tuple[str, ...]] = ()
    """Attributes that a resumed rule must be built with."""

    state_defaults: ClassVar[Mapping[str, Any]] = {}
    """What states of earlier versions lack, each with the value that it had then. So these states load for ever."""

    def check(self, loss: float) -> None:  # noqa: B027 - most rules refuse no loss
        """Raise if `observe` would refuse the loss."""

    def observe(self, loss: float, step: int) -> Status | None:
        """Take the validation loss after update `step`."""
        return None

    @abstractmethod
    def spans(self, step: int) -> tuple[Span, ...]:
        """Return the updates that are averaged if training ends at `step`.

        If a span begins at the evaluation that was just observed, the average begins with the weights of now.
        """

    @abstractmethod
    def needed(self) -> tuple[Span, ...]:
        """Return the updates that may still be averaged, in their order, as spans of which each has one fate.

        All updates of a span will be averaged as often as each other, whatever losses come, so one sum of their weights
        is enough. Sums of different spans must be kept apart. The last span may go on `FOREVER`.
        """

    def takes(self, step: Any) -> Any:
        """Whether a rule that is not dense averages the weights after update `step`.

        While a GradScaler may skip steps, `step` is a number on the device, and so must be the answer.
        """
        return True

    def share(self, step: Any) -> Any:
        """Return how far update `step` moves the mean of a rule that `moves` it toward the weights; 1 is all the way.

        While a GradScaler may skip steps, `step` is a number on the device, and so must be the answer.
        """
        raise NotImplementedError

    @property
    def capturable(self) -> bool:
        """Whether a rule that is not dense does the same at every update after the first, as a CUDA graph must."""
        return False

    def finished(self, step: int) -> bool:
        """Whether no update after `step` can be averaged."""
        return False

    def status_at(self, step: int) -> Status:
        """Return the status after `step` updates."""
        phase = Phase.STOPPED if self.finished(step) else Phase.AVERAGING
        return Status(phase, type(self).__name__, None, self.spans(step))

    def why_empty(self, step: int) -> str:
        """Say why no update up to `step` is averaged, and what to do."""
        return "call update_parameters after an optimizer step"

    def caveat(self, step: int) -> Warning | None:
        """Return what a reader of the average after `step` updates should be warned of, if anything."""
        return None

    # -- state --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `observe` depends on, as plain values."""
        return copy.deepcopy(vars(self))

    def check_state(self, state: Mapping[str, Any], owner: str) -> None:
        """Raise, in the name of `owner`, if the state was saved by another rule or with other settings."""
        expected, state = self.state_dict(), {**self.state_defaults, **state}
        if missing := [key for key in expected if key not in state]:
            raise ValueError(
                f"{owner} loads what its state_dict() returned, but this state lacks {', '.join(missing)}: "
                f"pass the state of a {type(self).__name__}"
            )
        differs = [
            f"{name} {state[name]!r} in the state, {expected[name]!r} here"
            for name in self.settings
            if state[name] != expected[name]
        ]
        if differs:
            raise ValueError(f"{owner} must resume with the settings it was saved with: {', '.join(differs)}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken; the settings must be the same.

        Args:
            state: What `state_dict` returned.
        """
        self.check_state(state, type(self).__name__)
        vars(self).update(copy.deepcopy({**self.state_defaults, **state}))
