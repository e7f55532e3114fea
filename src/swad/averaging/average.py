"""An average of weights along a trajectory: a model, and a rule for which updates are averaged."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swad.averaging.averager import Averager
from swad.averaging.rule import Rule
from swad.averaging.span_sums import Counted, SpanSums, mean_tensor, newest
from swad.averaging.spans import Status
from swad.averaging.state import ALONE
from swad.averaging.tracked import Buffers, TrackedTensors
from swad.averaging.trajectory import Trajectory
from swad.tensors import shards
from swad.tensors.names import Patterns, require_match, unwrap
from swad.tensors.swapping import swapped
from swad.util.warn import warn_caller


class Average(Averager):
    """The weights of some updates of a model, averaged. A rule decides which; an average moves tensors.

    `SWAD`, `SWA` and `EMA` are averages with a rule of theirs. One of your own is a rule (see `swad.averaging.rule`):

    >>> import torch, swad
    >>> from swad.averaging.window import Window
    >>> model = torch.nn.Linear(1, 1)
    >>> average = Average(model, Window(start=100, end=200))

    Args:
        model: The model to follow. Build the average after FSDP2 has sharded it.
        rule: What decides which updates are averaged.
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average (shell style), also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
        process_group: The processes that must agree on the observed loss. By default all.
    """

    sums: SpanSums
    """The rule, the tensors, and the sums that the rule needs."""

    def __init__(
        self,
        model: nn.Module,
        rule: Rule,
        *,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.sums = SpanSums(rule, TrackedTensors(model, buffers, include, exclude), offload)
        self.trajectory = Trajectory(type(self).__name__, {ALONE: self.sums}, process_group=process_group)

    @property
    def rule(self) -> Rule:
        """What decides which updates are averaged."""
        return self.sums.rule

    @property
    def tracked(self) -> TrackedTensors:
        """The model and its tensors that are averaged."""
        return self.sums.tracked

    @property
    def status(self) -> Status:
        """The phase of the trajectory, and what is averaged if training ends now."""
        return self.rule.status_at(self.step)

    def observe(self, loss: float | Tensor) -> Status:
        """Take the live model's validation loss after an evaluation and return the new status.

        With several processes every rank must call it, with the same loss; the ranks compare it.

        Args:
            loss: One number, not negative: the mean over the validation examples, with the live weights and not with
                the average.
        """
        return self._own_trajectory("observe").take_loss(loss)[ALONE]

    def __repr__(self) -> str:
        # Reading a skipped step's count waits for the device: until it is known, show the last evaluation.
        step = self.trajectory.known_step
        status = self.rule.status_at(step)
        fields = {
            "phase": status.phase,
            "step": step,
            "start_step": status.start_step,
            "end_step": status.end_step,
            "n_averaged": status.n_averaged,
        }
        if status.threshold is not None:
            fields["threshold"] = f"{status.threshold:.4g}"
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in fields.items())})"

    # -- using the average --------------------------------------------------------------------------------

    def copy_to(self, model: nn.Module | None = None) -> None:
        """Copy the average, as if training ended now, into `model`. The state of the average does not change.

        The model's weights are lost. To evaluate the average and continue training, use `average_parameters`.

        Args:
            model: The model to write to. By default the one that is followed.
        """
        self.tracked.require_same_modules()
        target = self._target(model)
        self._write_mean(self._parts(), target)

    @contextmanager
    def average_parameters(self, model: nn.Module | None = None) -> Iterator[nn.Module]:
        """Swap the average into `model` for the block, and restore the live weights after it, whatever happens.

        Args:
            model: The model to write to. By default the one that is followed.
        """
        self.tracked.require_same_modules()
        target = self._target(model)
        parts = self._parts()
        with swapped(target.model, lambda: target.written(excluded=target is not self.tracked)):
            self._write_mean(parts, target)
            yield target.model if model is None else model

    def averaged_model(self) -> nn.Module:
        """Return a new model with the average as if training ended now, in eval mode."""
        self.tracked.require_same_modules()
        parts = self._parts()
        model = copy.deepcopy(self.tracked.model)
        self._write_mean(parts, self.tracked.follow_copy(model))
        return model.eval()

    def averaged_state(self) -> dict[str, Any]:
        """Return the average as if training ended now: a state dict of new tensors in the model's dtypes.

        It contains frozen and excluded parameters, the buffers and the extra state of modules too, so that it loads
        strictly.
        """
        self.tracked.require_same_modules()
        parts, live = self._parts(), self.tracked.live()  # looks tensors up again that a change of dtype replaced
        means = {
            name: shards.like(tensor, mean_tensor(parts, i, live[i].device, live[i]).to(tensor.dtype))
            for i, (name, tensor) in enumerate(self.tracked.averaged.items())
        }
        buffers = dict(zip(self.tracked.buffers, self._newest_buffers(parts), strict=True))
        return self.tracked.whole_state(means, buffers)

    # -- internals ----------------------------------------------------------------------------------------

    def _own_trajectory(self, method: str) -> Trajectory:
        if ALONE not in self.trajectory.members:
            raise RuntimeError(f"this average is a member of an AverageGroup: call {method} of the group instead")
        return self.trajectory

    def _parts(self) -> Counted:
        """Return the sums of the average as if training ended now, each with how often it counts."""
        step = self.step
        parts = self.sums.averaged(self.trajectory.read_segment(), step)
        if not parts:
            raise RuntimeError(f"there is nothing to average yet: {self.rule.why_empty(step)}")
        if caveat := self.rule.caveat(step):
            warn_caller(str(caveat), type(caveat))
        return parts

    def _newest_buffers(self, parts: Counted) -> list[Tensor]:
        buffers = newest(parts).buffers
        return self.tracked.live_buffers() if buffers is None else buffers

    @torch.no_grad()
    def _write_mean(self, parts: Counted, target: TrackedTensors) -> None:
        """Copy the average, its buffers and the excluded tensors into the target's model."""
        shards.reshard(target.model)
        buffers = dict(zip(target.buffers, self._newest_buffers(parts), strict=True))
        held = dict(zip(target.buffers, target.held_buffers(), strict=True))
        require_match("the buffers of the average must have the shapes of the model's", held, buffers)
        for index, (tensor, live) in enumerate(zip(target.live(), self.tracked.live(), strict=True)):
            tensor.copy_(mean_tensor(parts, index, tensor.device, live))
        for name, tensor in held.items():
            tensor.copy_(buffers[name])
        if target is not self.tracked:
            excluded = target.live_excluded()
            for name, value in self.tracked.live_excluded().items():
                shards.local(excluded[name]).copy_(shards.local(value))

    def _target(self, model: nn.Module | None) -> TrackedTensors:
        if model is None or unwrap(model) is self.tracked.model:
            return self.tracked
        return self.tracked.follow_copy(model)
