"""The base class of all averages of weights along a trajectory: what a user calls. `member` has how it works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from swad.averaging import tensors
from swad.averaging.mean import Mean
from swad.averaging.member import Member
from swad.averaging.semantics import OPEN
from swad.averaging.tensors import Buffers, Patterns, TrackedTensors
from swad.averaging.valley import Status, as_number


class Average(Member):
    """The common part of all averages: following a model's tensors, swapping, copying, hooks and exact resume.

    A subclass defines which updates it takes (`_wants`), what it does with a segment at an evaluation (`_evaluated`),
    and which sums its result consists of (`_result`). See "for subclasses" in `swad.averaging.member`.

    Args:
        model: The model to follow. Build the average after FSDP2 has sharded it.
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average (shell style), also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
        process_group: The processes that must agree on the observed loss. By default all.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(TrackedTensors(model, buffers, include, exclude), offload, process_group)

    # -- during training ----------------------------------------------------------------------------------

    def count_replays(self, n: int = 1) -> None:
        """Count replays of a CUDA graph that captured `update_parameters`.

        Args:
            n: How many replays were made since the last count.
        """
        self._require_no_group("count_replays")
        self.take_replays(n)

    def observe(self, loss: float | Tensor) -> Status:
        """Take the live model's validation loss after an evaluation and return the new status.

        With several processes every rank must call it, with the same loss; the ranks compare it.

        Args:
            loss: One number, not negative: the mean over the validation examples, with the live weights and not with
                the average.
        """
        self._require_no_group("observe")
        self.tracked.require_same_modules()
        self.tracked.require_frozen()
        return self.take_loss(self.agreed_loss(as_number(loss)))

    @property
    def observed_step(self) -> int:
        """The update of the last evaluation."""
        return self._observed

    @property
    def status(self) -> Status:
        """The phase of the trajectory, and what is averaged if training ends now."""
        return self._status_at(self.step)

    def __repr__(self) -> str:
        # Reading a skipped step's count waits for the device: until it is known, show the last evaluation.
        pending = self._skips is not None or not self._segment.count_is_known
        step = self._observed if pending else self._updates
        status = self._status_at(step)
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
        self._mean().copy_to(target)

    @contextmanager
    def average_parameters(self, model: nn.Module | None = None) -> Iterator[nn.Module]:
        """Swap the average into `model` for the block, and restore the live weights after it, whatever happens.

        Args:
            model: The model to write to. By default the one that is followed.
        """
        self.tracked.require_same_modules()
        target = self._target(model)
        owner = target.model

        def written() -> dict[str, Tensor]:
            # Looked up each time: moving the model in the block replaces its buffers, and a forward may gather shards.
            tensors.reshard(owner)
            excluded = {} if target is self.tracked else target.live_excluded()
            return {
                **dict(zip(target.averaged, target.live(), strict=True)),
                **dict(zip(target.buffers, target.held_buffers(), strict=True)),
                **{name: tensors.local(tensor) for name, tensor in excluded.items()},
            }

        mean = self._mean()
        with tensors.swapped(owner, written):
            mean.copy_to(target)
            yield owner if model is None else model

    def averaged_state(self) -> dict[str, Tensor]:
        """Return the average as if training ended now: a state dict of new tensors in the model's dtypes.

        It contains frozen and excluded parameters, the buffers and the extra state of modules too, so that it loads
        strictly.
        """
        self.tracked.require_same_modules()
        return self._mean().state()

    # -- resume -------------------------------------------------------------------------------------------

    def state_dict(self, clone: bool = True) -> dict[str, Any]:
        """Return everything needed to continue exactly from here: a JSON header and named tensors.

        It holds only tensors, strings and dicts, so `torch.load(weights_only=True)` reads it back, and distributed
        checkpoints reshard it (see `swad.averaging.distributed_checkpoint`).

        Args:
            clone: Copy the tensors, so that later updates do not change the state. False saves memory where the
                state is written to disk at once.
        """
        self._require_no_group("state_dict")
        return self.own_state(clone)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings and a model of the same names.

        Args:
            state: What `state_dict` returned.
        """
        self._require_no_group("load_state_dict")
        self.restore(*self.read_state(state))

    # -- internals ----------------------------------------------------------------------------------------

    def _mean(self) -> Mean:
        self._resolve_skips()
        opened = list(self._open_sums().values())
        sums = [part for name in self._result() for part in (opened if name == OPEN else [self._sums[name]])]
        if not sum(part.weight for part in sums) > 0:
            raise RuntimeError(f"there is nothing to average yet: {self._why_empty()}")
        return Mean(sums, self.tracked)

    def _target(self, model: nn.Module | None) -> TrackedTensors:
        if model is None or tensors.unwrap(model) is self.tracked.model:
            return self.tracked
        return self.tracked.follow_copy(model)
