"""Several averages of one training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from swad.averaging.average import Average
from swad.averaging.averager import Averager
from swad.averaging.spans import Status
from swad.averaging.state import ALONE, member_state
from swad.averaging.tracked import TrackedTensors
from swad.averaging.trajectory import Listener, Trajectory


class AverageGroup(Averager, Mapping[str, Average]):
    """Many averages of one trajectory with one addition per step.

    The time of a step does not depend on the number of members: all three semantics, other tolerances, SMA and fixed
    windows share one addition. In memory, each keeps sums of its own: one weight-sized buffer in steady state. Averages
    that take only some updates (an interval) or weigh them differently (an EMA) cannot use the shared sum and add to
    one of their own. So do fixed windows once a `GradScaler` may skip steps of a fused optimizer, because then only the
    device knows at which step a window begins. No update waits for it.

    >>> import torch, swad
    >>> model = torch.nn.Linear(1, 1)
    >>> group = AverageGroup(model, {
    ...     "paper": swad.SWAD(model), "text": swad.SWAD(model, semantics="text"), "ema": swad.EMA(model),
    ... })
    >>> for step in range(1, 51):
    ...     group.update_parameters(model)
    ...     if step % 10 == 0:
    ...         statuses = group.observe(1.0)
    >>> statuses["paper"].start_step, statuses["ema"].n_averaged
    (10, 50)
    >>> with group["text"].average_parameters(model):
    ...     pass

    Args:
        model: The model to follow.
        averages: The members by name, without updates so far. Dense members must average the same tensors.
        listeners: What sees every segment besides them, by name, e.g. a `SegmentLog`.
    """

    def __init__(
        self, model: nn.Module, averages: Mapping[str, Average], listeners: Mapping[str, Listener] | None = None
    ) -> None:
        listeners = dict(listeners or {})
        _check_members(averages, listeners)
        self._averages = dict(averages)
        members = {name: average.sums for name, average in averages.items()}
        processes = next((average.trajectory.process_group for average in averages.values()), None)
        self.trajectory = Trajectory("AverageGroup", members, listeners, processes)
        shared = self.trajectory.tracked  # looked up once for all
        for average in averages.values():
            average.trajectory = self.trajectory
        for part in (*members.values(), *listeners.values()):
            if _names(part.tracked) == _names(shared):
                part.tracked = shared
            part.tracked.follow(model)

    def __getitem__(self, name: str) -> Average:
        return self._averages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._averages)

    def __len__(self) -> int:
        return len(self._averages)

    def __repr__(self) -> str:
        members = "".join(f"  ({name}): {average!r}\n" for name, average in self._averages.items())
        return f"AverageGroup(\n{members})"

    @property
    def should_stop(self) -> bool:
        """Whether every average is complete."""
        return self.trajectory.should_stop

    def observe(self, loss: float | Tensor) -> dict[str, Status]:
        """Take the live model's validation loss after an evaluation and return every average's status.

        With several processes every rank must call it, with the same loss.

        Args:
            loss: One number, not negative: the mean over the validation examples, with the live weights.
        """
        return self.trajectory.take_loss(loss)

    def load_branch(self, state: Mapping[str, Any]) -> None:
        """Continue the trajectory of another group. Members with the same name continue; others begin there or later.

        Args:
            state: What `state_dict` of the other group returned.
        """
        self.trajectory.branch(state)

    @staticmethod
    def member_state(state: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return the state of one member out of that of a group, which an average alone can load.

        Args:
            state: What `state_dict` of a group returned.
            name: The name of the member.
        """
        return member_state(state, name)


def _check_members(averages: Mapping[str, Average], listeners: Mapping[str, Listener]) -> None:
    if not isinstance(averages, Mapping):
        raise TypeError(f"the averages of a group have names, got a {type(averages).__name__}: pass {{name: average}}")
    if not averages and not listeners:
        raise ValueError("a group needs at least one average, got none")
    if len(set(map(id, averages.values()))) < len(averages):
        raise ValueError("every name needs an average of its own, got one under several names: build one for each")
    if ALONE in averages:
        raise ValueError("every average of a group needs a name, got an empty one: name it")
    for name, average in averages.items():
        if not isinstance(average, Average):
            raise TypeError(
                f"the members of a group are averages, got a {type(average).__name__} as {name!r}: "
                f"pass e.g. swad.SWAD(model)"
            )
        if ALONE not in average.trajectory.members or average.step or average.trajectory.is_attached:
            raise ValueError(
                f"an average joins one group, before its first update and before it is attached to an optimizer; "
                f"{name} was used before: pass a new average, and attach the group"
            )
    dense = {name: average.tracked for name, average in averages.items() if average.rule.dense}
    takers = [*dense.items(), *((name, listener.tracked) for name, listener in listeners.items())]
    for name, tracked in takers:
        if list(tracked.averaged) != list(takers[0][1].averaged):
            raise ValueError(
                f"the dense averages of a group average the same tensors; {name} has others: give it its own group"
            )


def _names(tracked: TrackedTensors) -> tuple[list[str], list[str]]:
    return list(tracked.averaged), list(tracked.buffers)
