"""The classes of khanrc/swad, of which many trainers contain a copy: change the two lines that import them.

    from swad.compat import LossValley                   # instead of domainbed.swad
    from swad.compat import AveragedModel, update_bn     # instead of domainbed.lib.swa_utils

The rest of the trainer stays as it is:

>>> import torch
>>> algorithm = torch.nn.Linear(1, 1, bias=False)
>>> swad_algorithm = AveragedModel(algorithm)
>>> swad = LossValley(None, n_converge=2, n_tolerance=3, tolerance_ratio=0.5)
>>> losses = [4.0, 1.5, 1.0, 1.2, 1.4, 1.7, 1.6, 1.9, 2.0, 2.1]
>>> for step in range(1, 101):
...     _ = algorithm.weight.data.fill_(step)                    # an optimizer step
...     swad_algorithm.update_parameters(algorithm, step=step)
...     if step % 10 == 0:
...         swad.update_and_evaluate(swad_algorithm, val_acc=None, val_loss=losses[step // 10 - 1])
...         if swad.dead_valley:
...             break
...         swad_algorithm = AveragedModel(algorithm)            # reset
>>> final = swad.get_final_model()
>>> final.start_step, final.end_step, final.n_averaged.item(), round(final.module.weight.item(), 4)
(21, 70, 6, 42.1667)

The weights are those of the published class up to rounding; `swad.averaging.published_code` says which. What differs:

- `get_final_model` changes nothing and returns a new model, so it may be called at every validation. The published one
  empties its queue: a read at every validation averages too little, and the valley ends too early.
- It keeps sums, not models: usually three once the valley has settled and up to max(N_s, N_e) + 2 before, in host
  memory. The published class keeps max(N_s, N_e) + 1 models, each with the optimizer's state.
- Optimizers are never copied; a copy has None in their place. Frozen parameters are added up only if they change.
- Numbers that look like accuracies warn, and losses that are not finite raise.
- It resumes (`state_dict`), and it can be pickled.
- Without `step=` the order of the segments counts. The published class then averages some before the lowest loss too.

Without such a history use `swad.SWAD`, which has all semantics, FSDP2 and groups of averages.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from swad.averaging import batchnorm, valley
from swad.averaging.checks import as_number
from swad.averaging.published_code import PublishedCode
from swad.averaging.spans import Phase, Status
from swad.averaging.swad import SWAD
from swad.averaging.tracked import TrackedTensors
from swad.tensors.shards import accumulator
from swad.util.warn import warn_caller

Device = torch.device | str | int | None


class AveragedModel(nn.Module):
    """The mean of a model's weights over the updates of a segment, in a copy of the model without its optimizers.

    Its buffers are those at the moment when it is built, as published: call `update_bn` on the final model if batch
    norms are trained. Of a model with `get_forward_model()`, only that part is copied and averaged.

    Args:
        model: The algorithm or network to copy.
        device: Where to keep the copy. By default where the model is.
        avg_fn: Not supported.
        rm_optimizer: Has no effect, because optimizers are never copied.
        use_buffers: Average floating-point buffers too.
    """

    module: nn.Module
    n_averaged: Tensor

    def __init__(
        self,
        model: nn.Module,
        device: Device = None,
        avg_fn: None = None,
        rm_optimizer: bool = True,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None:
            raise ValueError("all updates of a segment have the same weight, got avg_fn: use e.g. swad.EMA instead")
        source = _forward_model(model)
        self.module = copy.deepcopy(source, {id(optimizer): None for optimizer in _optimizers(source)})
        self.module.to(device)
        self.register_buffer("n_averaged", torch.tensor(0, device=device))
        self.use_buffers = use_buffers
        self.start_step: float = -1
        self.end_step: float = -1
        self._count = 0  # `n_averaged`, known without waiting for the device
        self._wide: dict[int, Tensor] = {}  # the means of low-precision tensors, in which they would stop moving

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the copy."""
        return self.module(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Call `predict` of the copy, or the copy itself if it has none."""
        return getattr(self.module, "predict", self.module)(*args, **kwargs)

    @property
    def network(self) -> Any:
        """The network of the algorithm."""
        return self.module.network

    @torch.no_grad()
    def update_parameters(
        self,
        model: nn.Module,
        step: float | None = None,
        start_step: float | None = None,
        end_step: float | None = None,
    ) -> None:
        """Take the weights after an optimizer step.

        Args:
            model: The model that is trained.
            step: The trainer's number of this update, for `start_step` and `end_step` of the average.
            start_step: The first update instead, if `model` is an average of several.
            end_step: The last one.
        """
        means, live = self._means(), self._averaged(_forward_model(model))
        _require_same_shapes(means, live)
        self._count += 1
        torch._foreach_lerp_(means, [new.to(mean) for mean, new in zip(means, live, strict=True)], 1 / self._count)
        for held, mean in zip(self._averaged(), means, strict=True):
            if held is not mean:
                held.copy_(mean)
        self.n_averaged.fill_(self._count)
        first, last = (step if number is None else number for number in (start_step, end_step))
        if first is not None and self._count == 1:
            self.start_step = first
        if last is not None:
            self.end_step = last

    def _averaged(self, module: nn.Module | None = None) -> list[Tensor]:
        """Return the tensors to average, of the copy or of another module: parameters, and buffers if wanted."""
        module = module or self.module
        tensors = [*module.parameters(), *(module.buffers() if self.use_buffers else ())]
        return [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]

    def _means(self) -> list[Tensor]:
        """Return the averaged tensors of the copy with their full precision."""
        tensors = self._averaged()
        for i, tensor in enumerate(tensors):
            if tensor.dtype != accumulator(tensor) and i not in self._wide:
                self._wide[i] = tensor.detach().to(accumulator(tensor))
        return [self._wide.get(i, tensor) for i, tensor in enumerate(tensors)]

    # The rest of a segment is in the metadata of its state dict, so that the keys are the published ones.

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            wide = {i: mean.clone() for i, mean in self._wide.items()}
            destination._metadata[prefix[:-1]]["segment"] = (self.start_step, self.end_step, wide)

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *args)
        self._count = int(self.n_averaged)
        self.start_step, self.end_step, wide = metadata.get("segment", (-1, -1, {}))
        self._wide = {i: mean.clone() for i, mean in wide.items()}


class LossValley:
    """The published detector and its average: call `update_and_evaluate` after each evaluation.

    Args:
        evaluator: Not used; may be None.
        n_converge: N_s, the evaluations for which a loss must stay the lowest to be the start.
        n_tolerance: N_e, the evaluations in a row above the threshold that end the valley.
        tolerance_ratio: By how much the threshold exceeds the mean of the N_s losses.
        offload: Keep the sums in host memory, as the published class does with its models.
        settings: Other settings of `swad.LossValley`: `mode="max"` for a score, `tolerance`, `start`, `nonfinite`.
    """

    def __init__(
        self,
        evaluator: Any = None,
        n_converge: int = 3,
        n_tolerance: int = 6,
        tolerance_ratio: float = 0.3,
        *,
        offload: bool = True,
        **settings: Any,
    ) -> None:
        if isinstance(evaluator, int | float):
            raise TypeError(f"the first argument is the evaluator or None, got {evaluator}: pass n_converge by name")
        if settings.setdefault("semantics", "reference") != "reference":
            raise ValueError(
                f"the published class averages segments, got semantics={settings['semantics']!r}: use swad.SWAD instead"
            )
        self.evaluator, self.offload = evaluator, offload
        self.n_converge, self.n_tolerance, self.tolerance_ratio = n_converge, n_tolerance, tolerance_ratio
        self._valley = valley.LossValley(n_converge, n_tolerance, tolerance_ratio, **settings)
        self._segments: list[tuple[int, float, float]] = []  # the last update, start_step and end_step of each
        self._average: SWAD | None = None
        self._moving: list[int] = []  # which tensors it averages: those that are trained or have changed
        self._shells: dict[int, AveragedModel] = {}  # by last update, the segments that may have the lowest loss

    @property
    def status(self) -> Status:
        """The status of `swad.LossValley`, which counts updates from 1 whatever `step=` was."""
        return self._valley.status

    @property
    def dead_valley(self) -> bool:
        """Whether the valley has ended, and the average is complete."""
        return self._valley.phase is Phase.STOPPED

    @property
    def threshold(self) -> float | None:
        """The loss above which evaluations count toward the end."""
        return self.status.threshold

    @property
    def is_converged(self) -> bool:
        """Whether the start of the valley is confirmed."""
        return self._valley.converged

    @property
    def converge_step(self) -> float | None:
        """The `end_step` of the segment with the lowest loss, once that is confirmed."""
        lowest = self._detector.converged
        return None if lowest is None else self._segment_of(lowest.last)[2]

    @torch.no_grad()
    def update_and_evaluate(
        self, segment_swa: AveragedModel, val_acc: Any = None, val_loss: Any = None, prt_fn: Any = None
    ) -> None:
        """Take the updates since the last evaluation, and the live model's validation loss after them.

        Args:
            segment_swa: The average of the updates. It is not changed.
            val_acc: Not used; if it is the only number, it is the loss.
            val_loss: The loss, or the score with `mode="max"`.
            prt_fn: Not used.
        """
        if self.dead_valley:
            return
        if not isinstance(segment_swa, AveragedModel):
            raise TypeError(f"a segment must be a swad.compat.AveragedModel, got a {type(segment_swa).__name__}")
        loss = as_number(val_acc if val_loss is None else val_loss)
        self._valley.check(loss)
        if not self._segments and self._valley.mode == "min" and val_acc is not None and val_acc == val_loss:
            warn_caller(
                f"val_acc and val_loss are the same number, {loss:.4g}: "
                f"pass the loss as val_loss, or build LossValley(..., mode='max') if both are a score"
            )
        average, means, n_updates = self._follow(segment_swa), segment_swa._means(), max(1, segment_swa._count)
        average.trajectory.take_segment({str(k): means[i] * n_updates for k, i in enumerate(self._moving)}, n_updates)
        self._segments.append((average.step, segment_swa.start_step, segment_swa.end_step))
        if not self.is_converged:
            self._shells[average.step] = self._shell(segment_swa)
        average.trajectory.take_loss(loss, compare=False)  # many trainers evaluate in the main process alone
        if not average.trajectory.read_segment().weight:  # a skipped loss leaves the segment open
            average.trajectory.segment.release()
        lowest, window = self._detector.converged, self._detector.queue[-self.n_converge :]
        candidates = [segment.last for segment in (window if lowest is None else [lowest])]
        self._shells = {last: self._shells[last] for last in candidates or [average.step]}

    @torch.no_grad()
    def get_final_model(self, device: Device = None) -> AveragedModel:
        """Return a new model with the average as if training ended now. Nothing changes, so call it at any time.

        Until the valley is confirmed it is the last segment, with a `swad.NeverConvergedWarning`.

        Args:
            device: Where to put it. By default where the segments are.
        """
        if self._average is None:
            raise RuntimeError("there is nothing to average yet: call update_and_evaluate after an evaluation")
        final = copy.deepcopy(list(self._shells.values())[-1]).to(device)
        averaged = final._averaged()
        self._average.copy_to(nn.ParameterList(nn.Parameter(averaged[i], False) for i in self._moving))
        spans = self.status.spans
        final.start_step, final.end_step = self._segment_of(spans[0].first)[1], self._segment_of(spans[-1].last)[2]
        final._count = sum(
            int(span.times) for last, *_ in self._segments for span in spans if span.overlaps(last, last)
        )
        final.n_averaged.fill_(final._count)
        return final

    # -- state --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, as JSON and tensors. An open segment has a state dict of its own."""
        if self._average is None:
            return {}
        header = {"segments": self._segments, "moving": self._moving}
        buffers = {
            str(last): {name: buffer.clone() for name, buffer in shell.named_buffers()}
            for last, shell in self._shells.items()
        }
        return {**self._average.state_dict(), "valley": json.dumps(header, default=float), "buffers": buffers}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any], segment_swa: AveragedModel) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings.

        Args:
            state: What it returned.
            segment_swa: A segment of the same model; the final model gets its frozen parameters.
        """
        if not state:
            return
        header = json.loads(state["valley"])
        self._average, self._shells, self._moving = None, {}, header["moving"]
        self._follow(segment_swa).load_state_dict(state)
        self._segments = [(last, start, end) for last, start, end in header["segments"]]
        for last, buffers in state["buffers"].items():
            self._shells[int(last)] = shell = self._shell(segment_swa)
            for name, buffer in shell.named_buffers():
                buffer.resize_(buffers[name].shape).copy_(buffers[name])

    # -- internals ----------------------------------------------------------------------------------------

    @property
    def _detector(self) -> PublishedCode:
        assert isinstance(self._valley.detector, PublishedCode)
        return self._valley.detector

    def _segment_of(self, update: int) -> tuple[int, float, float]:
        return next(segment for segment in self._segments if update <= segment[0])

    def _follow(self, segment: AveragedModel) -> SWAD:
        """Return the average of the tensors that are trained, or have changed since the first segment."""
        tensors, means = segment._averaged(), segment._means()
        if self._average is None:
            trained = [i for i, t in enumerate(tensors) if t.requires_grad or not isinstance(t, nn.Parameter)]
            self._moving = self._moving or trained
            self._average = SWAD(self._stand_ins(means), valley=self._valley, offload=self.offload)
            return self._average
        before = next(iter(self._shells.values()))._averaged()
        _require_same_shapes(before, means)
        sums, n_moving = self._average.sums, len(self._moving)
        for i, mean in enumerate(means):
            if i not in self._moving and not torch.equal(before[i].to(mean), mean):
                self._moving.append(i)
                for total in (*sums.closed, self._average.trajectory.read_segment()):
                    if total.values:  # all segments so far had the same value
                        total.values.append(before[i].to(total.values[0].device, mean.dtype) * total.weight)
        if len(self._moving) > n_moving:
            sums.tracked = TrackedTensors(self._stand_ins(means), "copy", None, None)
        return self._average

    def _stand_ins(self, means: Sequence[Tensor]) -> nn.ParameterList:
        return nn.ParameterList(_stand_in(means[i]).requires_grad_() for i in self._moving)

    def _shell(self, segment: AveragedModel) -> AveragedModel:
        """Copy a segment without the weights that are averaged; all such copies share the frozen ones."""
        tensors, others = segment._averaged(), list(segment.module.parameters())
        memo: dict[int, Any] = {id(segment._wide): {}}
        if self._shells:
            first = next(iter(self._shells.values())).module.parameters()
            memo |= {id(param): shared for param, shared in zip(others, first, strict=True)}
        else:
            memo |= {
                id(tensors[i]): _stand_in(tensors[i]) for i in self._moving if isinstance(tensors[i], nn.Parameter)
            }
        return copy.deepcopy(segment, memo)


def update_bn(
    iterator: Iterable[Any], model: nn.Module, n_steps: int | None = None, device: torch.device | str | None = None
) -> None:
    """Recompute the statistics of batch norms as `swad.update_bn` does: dropout off, batches weighted by their size.

    Args:
        iterator: Batches: a tensor, a sequence that starts with one, or for each domain a dict with "x" or a pair.
        model: The final model.
        n_steps: How many batches to take. By default all.
        device: Where to move them. By default to the device of the model.
    """
    batchnorm.update_bn(map(_images, iterator), model, n_batches=n_steps, device=device)


def _images(batch: Any) -> Any:
    """Join the images of all domains."""
    if isinstance(batch, Sequence) and batch and isinstance(batch[0], Mapping):
        return torch.cat([domain["x"] for domain in batch])
    if isinstance(batch, Sequence) and batch and isinstance(batch[0], Sequence):
        return torch.cat([domain[0] for domain in batch])
    return batch


def _forward_model(model: nn.Module) -> nn.Module:
    """Return what is averaged of a model: all, unless it names the part that predicts."""
    if isinstance(model, AveragedModel):
        return model.module
    get_forward_model: Any = getattr(model, "get_forward_model", None)
    if get_forward_model is None:
        return model
    forward_model: nn.Module = get_forward_model()
    for module in forward_model.modules():
        clear_features: Any = getattr(module, "clear_features", None)
        if clear_features is not None:  # those of the last batch have a graph and cannot be copied
            clear_features()
    return forward_model


def _optimizers(model: nn.Module) -> Iterator[Optimizer]:
    """Yield the optimizers that a model holds, also in lists, dicts and schedulers."""
    for attribute in [value for module in model.modules() for value in vars(module).values()]:
        held = attribute.values() if isinstance(attribute, dict) else attribute
        for value in held if isinstance(attribute, dict | list | tuple) else [attribute]:
            optimizer = value.optimizer if isinstance(value, LRScheduler) else value
            if isinstance(optimizer, Optimizer):
                yield optimizer


def _stand_in(tensor: Tensor) -> nn.Parameter:
    """Return a parameter of the same shape, dtype and device that takes no memory."""
    return nn.Parameter(tensor.detach().new_zeros(()).expand(tensor.shape), tensor.requires_grad)


def _require_same_shapes(expected: Sequence[Tensor], actual: Sequence[Tensor]) -> None:
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in actual]:
        raise ValueError("the model must have the parameters of the first segment: build a new LossValley for another")
