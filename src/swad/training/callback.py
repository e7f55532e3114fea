"""Follow a run while it trains: pass a `RunCallback` to `train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from swad.averaging.valley import Status
    from swad.training.config import RunConfig
    from swad.training.result import RunResult


class RunCallback:
    """Receives the events of a run, in the main process only.

    Subclass it and override the events of interest; the methods of this class do nothing.
    """

    def on_start(self, config: RunConfig, total: int, step: int) -> None:
        """Training starts, or is resumed after `step` of `total` steps."""

    def on_log(self, message: str) -> None:
        """Log how the run is computed: a choice that was made, or a fallback and its reason."""

    def on_progress(self, description: str, done: int, total: int | None) -> None:
        """Work before the first step has progressed; the signature is that of `swad.util.progress.Progress`."""

    def on_step(self, step: int, loss: Tensor) -> None:
        """A step was made. Reading the loss waits for the device, so read it rarely."""

    def on_evaluation(
        self, step: int, train_loss: float, losses: Mapping[str, float], statuses: Mapping[str, Status]
    ) -> None:
        """The live weights were evaluated.

        Args:
            step: Steps made so far.
            train_loss: Mean training loss since the last evaluation.
            losses: Validation loss of every source domain.
            statuses: Status of every average.
        """

    def on_end(self, result: RunResult) -> None:
        """The run is finished. Also called for a run that was finished before."""
