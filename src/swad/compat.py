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
- It keeps sums in host memory and one model: usually three sums once the valley has settled, up to max(N_s, N_e) + 2
  before. The published class keeps max(N_s, N_e) + 1 models, each with the optimizer's state.
- Optimizers are never copied; a copy has None in their place.
- The final model has the buffers of the last evaluation: call `update_bn` if batch norms are trained.
- Numbers that look like accuracies warn, and losses that are not finite raise.
- It resumes (`state_dict`), and it can be pickled.

Without such a trainer use `swad.SWAD`, which has all semantics, FSDP2 and groups of averages.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from swad.averaging import valley
from swad.averaging.checks import as_number
from swad.averaging.published_code import PublishedCode
from swad.averaging.span_sums import counted, mean_tensor
from swad.averaging.spans import Phase, Status
from swad.averaging.sums import WeightSum
from swad.tensors import batch_norms
from swad.tensors.shards import accumulator
from swad.util.warn import warn_caller

Device = torch.device | str | int | None


class AveragedModel(nn.Module):
    """The mean of a model's weights over the updates of a segment, in a copy of the model without its optimizers.

    Of a model with `get_forward_model()`, only that part is copied and averaged.

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
        attributes = [value for module in source.modules() for value in vars(module).values()]
        self.module = copy.deepcopy(source, {id(value): None for value in attributes if isinstance(value, Optimizer)})
        self.module.to(device)
        self.register_buffer("n_averaged", torch.tensor(0, device=device))
        self.use_buffers = use_buffers
        if low := [tensor.dtype for tensor in self._averaged() if tensor.dtype != accumulator(tensor)]:
            raise ValueError(
                f"a mean in {low[0]} stops moving after a few hundred updates: use swad.SWAD, which sums in float32"
            )
        self.start_step: float = -1
        self.end_step: float = -1
        self._count = 0  # `n_averaged`, known without waiting for the device

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
        means, live = self._averaged(), self._averaged(_forward_model(model))
        if [mean.shape for mean in means] != [tensor.shape for tensor in live]:
            raise ValueError("the model must have the parameters of the copied one: build a new AveragedModel of it")
        self._count += 1
        torch._foreach_lerp_(
            means, [tensor.to(mean) for mean, tensor in zip(means, live, strict=True)], 1 / self._count
        )
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
        return [tensor.detach() for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]

    def get_extra_state(self) -> dict[str, float]:
        """Return what `state_dict` has besides the published entries."""
        return {"start_step": self.start_step, "end_step": self.end_step}

    def set_extra_state(self, state: Mapping[str, float]) -> None:
        """Continue from what `get_extra_state` returned."""
        self.start_step, self.end_step = state["start_step"], state["end_step"]

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        state.setdefault(f"{prefix}_extra_state", self.get_extra_state())  # the published class has none
        super()._load_from_state_dict(state, prefix, *args)
        self._count = int(self.n_averaged)


class LossValley:
    """The published detector and its average: call `update_and_evaluate` after each evaluation.

    Args:
        evaluator: Not used; may be None.
        n_converge: N_s, the evaluations for which a loss must stay the lowest to be the start.
        n_tolerance: N_e, the evaluations in a row above the threshold that end the valley.
        tolerance_ratio: By how much the threshold exceeds the mean of the N_s losses.
        settings: Other settings of `swad.LossValley`: `mode="max"` for a score, `tolerance`, `start`.
    """

    def __init__(
        self,
        evaluator: Any = None,
        n_converge: int = 3,
        n_tolerance: int = 6,
        tolerance_ratio: float = 0.3,
        **settings: Any,
    ) -> None:
        if isinstance(evaluator, int | float):
            raise TypeError(f"the first argument is the evaluator or None, got {evaluator}: pass n_converge by name")
        for name, needed in (("semantics", "reference"), ("nonfinite", "raise")):
            if settings.setdefault(name, needed) != needed:
                raise ValueError(f"the published class has {name}={needed!r}, got {settings[name]!r}: use swad.SWAD")
        self.evaluator = evaluator
        self.n_converge, self.n_tolerance, self.tolerance_ratio = n_converge, n_tolerance, tolerance_ratio
        self._valley = valley.LossValley(n_converge, n_tolerance, tolerance_ratio, **settings)
        self._sums: list[WeightSum] = []  # of the means of segments
        self._start_steps: dict[int, float] = {}  # of each segment, by its first update as the detector counts them
        self._end_steps: dict[int, float] = {}  # and by its last one
        self._newest: AveragedModel | None = None  # what a final model has besides the averaged weights

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
        detector = self._valley.detector
        assert isinstance(detector, PublishedCode)
        return None if detector.converged is None else self._end_steps[detector.converged.last]

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
        means = [tensor.to("cpu", accumulator(tensor), copy=True) for tensor in segment_swa._averaged()]
        if self._sums and [mean.shape for mean in means] != [value.shape for value in self._sums[0].values]:
            raise ValueError(
                "the model must have the parameters of the first segment: build a new LossValley for another"
            )
        loss = as_number(val_acc if val_loss is None else val_loss)
        if not self._end_steps and self._valley.mode == "min" and val_acc is not None and val_acc == val_loss:
            warn_caller(
                f"val_acc and val_loss are the same number, {loss:.4g}: "
                f"pass the loss as val_loss, or build LossValley(..., mode='max') if both are a score"
            )
        first = max(self._end_steps, default=0) + 1
        last = first + max(1, segment_swa._count) - 1
        self._valley.observe(loss, last)
        self._start_steps[first], self._end_steps[last] = segment_swa.start_step, segment_swa.end_step
        self._newest = segment_swa
        # All updates of a needed span have one fate, so one sum is enough for them.
        sums = [*self._sums, WeightSum(means, first, last, 1, buffers=[])]
        shared = [[total for total in sums if span.overlaps(total.first, total.last)] for span in self._valley.needed()]
        self._sums = [_added_up(of_span) for of_span in shared if of_span]

    @torch.no_grad()
    def get_final_model(self, device: Device = None) -> AveragedModel:
        """Return a new model with the average as if training ended now. Nothing changes, so call it at any time.

        Until the valley is confirmed it is the last segment, with a `swad.NeverConvergedWarning`.

        Args:
            device: Where to put it. By default where the segments are.
        """
        step, spans = max(self._end_steps, default=0), self.status.spans
        averaged = counted(self._sums, spans)
        if self._newest is None or not averaged:
            why = self._valley.why_empty(step) if step else "call update_and_evaluate after an evaluation"
            raise RuntimeError(f"there is nothing to average yet: {why}")
        if caveat := self._valley.caveat(step):
            warn_caller(str(caveat), type(caveat))
        final = copy.deepcopy(self._newest).to(device)
        for i, tensor in enumerate(final._averaged()):
            tensor.copy_(mean_tensor(averaged, i, torch.device("cpu"), tensor))
        final.start_step, final.end_step = self._start_steps[spans[0].first], self._end_steps[spans[-1].last]
        # Of segments; without a valley the published class returns the last segment, which has counted its updates.
        n_segments = round(sum(total.weight * times for total, times in averaged))
        final._count = n_segments if self.is_converged else self.status.n_averaged
        final.n_averaged.fill_(final._count)
        return final

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, as JSON and tensors. An open segment has a state dict of its own."""
        header = {
            "valley": self._valley.state_dict(),
            "start_steps": list(self._start_steps.items()),
            "end_steps": list(self._end_steps.items()),
            "sums": [total.header() for total in self._sums],
        }
        tensors = {str(k): {str(i): value for i, value in enumerate(s.values)} for k, s in enumerate(self._sums)}
        return {"header": json.dumps(header, default=float), **tensors}

    def load_state_dict(self, state: Mapping[str, Any], segment_swa: AveragedModel) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings.

        Args:
            state: What it returned.
            segment_swa: A segment of the same model, which gives the final model all that is not averaged.
        """
        header = json.loads(state["header"])
        self._valley.load_state_dict(header["valley"])
        self._start_steps, self._end_steps = dict(header["start_steps"]), dict(header["end_steps"])
        values = [[tensor.clone() for tensor in state[str(k)].values()] for k in range(len(header["sums"]))]
        self._sums = [WeightSum(v, **head, buffers=[]) for v, head in zip(values, header["sums"], strict=True)]
        self._newest = segment_swa if self._end_steps else None


def _added_up(sums: Sequence[WeightSum]) -> WeightSum:
    first, *others = sums
    for other in others:
        torch._foreach_add_(first.values, other.values)
        first.weight, first.last = first.weight + other.weight, other.last
    return first


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
    batch_norms.update_bn(map(_images, iterator), model, n_batches=n_steps, device=device)


def _images(batch: Any) -> Any:
    """Join the images of all domains."""
    if isinstance(batch, Sequence) and batch and isinstance(batch[0], Mapping | Sequence):
        return torch.cat([domain["x" if isinstance(domain, Mapping) else 0] for domain in batch])
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
