"""What a user calls during training, of an average and of a group of averages alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from swad.averaging.trajectory import Trajectory


class Averager:
    """Follows a training: updates, replays of CUDA graphs, and the state to resume from."""

    trajectory: Trajectory
    """Counts the updates and keeps the sums; of a member of a group, that of the group."""

    def update_parameters(self, model: nn.Module | None = None) -> None:
        """Take the weights after an optimizer step, for the cost of one foreach addition.

        In a CUDA graph capture only the addition is recorded; call `count_replays` once per replay.

        Args:
            model: The model, which may also be wrapped (DDP, `torch.compile`) or another one with the same tensors. By
                default the one followed so far.
        """
        trajectory = self._own_trajectory("update_parameters")
        if trajectory.is_attached:
            raise RuntimeError(
                "this average is attached to an optimizer, whose steps it counts: remove the call to update_parameters"
            )
        trajectory.take_update(model)

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Update after every step `optimizer` really makes, until `.remove()` is called on the returned handle.

        Gradient accumulation needs no setting: only steps count. A step that a `GradScaler` skips does not count,
        also with fused optimizers, whose step runs but leaves the weights unchanged.

        Args:
            optimizer: The optimizer that trains the averaged parameters; of several, the one that steps last.
        """
        return self._own_trajectory("attach").attach(optimizer)

    def count_replays(self, n: int = 1) -> None:
        """Count replays of a CUDA graph that captured `update_parameters`.

        Averages that take only some updates are not in the graph: they take the weights here. So `n` must not skip an
        update that they average, nor one at which a fixed window begins or ends.

        Args:
            n: How many replays were made since the last count.
        """
        self._own_trajectory("count_replays").take_replays(n)

    def reset(self) -> None:
        """Start over, as if no update had been made: for a new phase or task. It stays attached to its optimizer."""
        self._own_trajectory("reset").reset()

    @property
    def step(self) -> int:
        """Updates so far."""
        return self.trajectory.step

    def state_dict(self, clone: bool = True) -> dict[str, Any]:
        """Return everything needed to continue exactly from here: a JSON header and named tensors.

        It holds only tensors, strings and dicts, so `torch.load(weights_only=True)` reads it back, and distributed
        checkpoints reshard it (see `swad.averaging.distributed_checkpoint`).

        Args:
            clone: Copy the tensors, so that later updates do not change the state. False saves memory where the
                state is written to disk at once.
        """
        return self._own_trajectory("state_dict").save(clone)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings and a model of the same names.

        Args:
            state: What `state_dict` returned.
        """
        self._own_trajectory("load_state_dict").resume(state)

    def _own_trajectory(self, method: str) -> Trajectory:
        """Return the trajectory, or raise if only the group of this average may change it."""
        return self.trajectory
