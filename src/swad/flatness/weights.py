"""Perturbing a model's weights in place, and restoring them bit for bit.

One copy of the weights is kept, but no copy of the model. Every move starts from that copy, so errors do not add up,
and the weights are restored by copying instead of subtracting.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from swad.tensors.batch_norms import is_bn_statistic as is_bn_statistic
from swad.tensors.names import Patterns, canonical, chosen_names, named_tensors, tied_names, unwrap
from swad.tensors.shards import accumulator, is_sharded

State = Mapping[str, Tensor]
"""Weights by name, as `state_dict()` gives them."""
Source = State | nn.Module
Moves = Sequence[tuple[Sequence[Tensor], float]]
"""Directions and how far to go along each."""

COARSE = 0.1
"""Warn if rounding is larger than this share of a move's length.

Rounding is nearly orthogonal to the move: of a tenth of its length, it makes the move 0.5 % longer.
"""


class Weights:
    """The floating-point parameters of a model, or those that `include` and `exclude` choose, ready to be perturbed.

    Frozen parameters are included, tied ones count once. Inside the `with` block the model is in evaluation mode. At
    its end parameters, buffers, modes, gradients and `requires_grad` are restored, also after an error.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> before = model.weight.clone()
    >>> with Weights(model) as weights:
    ...     weights.move([torch.ones(1, 2)], 0.5)
    ...     bool((model.weight == before + 0.5).all())
    True
    >>> torch.equal(model.weight, before)
    True
    """

    def __init__(
        self,
        model: nn.Module,
        include: Patterns = None,
        exclude: Patterns = None,
        names: Collection[str] | None = None,
    ) -> None:
        self.model = unwrap(model)
        self.given = model
        """The model as it was given, e.g. wrapped in another module."""
        chosen = chosen_parameters(self.model, include, exclude)
        if names is not None:
            chosen = {name: tensor for name, tensor in chosen.items() if name in names}
        self.names = list(chosen)
        self.live = [tensor.detach() for tensor in chosen.values()]
        self.parameters = list(chosen.values())
        self.dim = sum(tensor.numel() for tensor in self.live)
        self.device = self.live[0].device
        # Half-precision weights plus small moves need a higher precision than the weights have.
        self.dtypes = [accumulator(tensor) for tensor in self.live]
        self.base: list[Tensor] = []

    def __enter__(self) -> Self:
        self._parameters = [(tensor, tensor.requires_grad, tensor.grad) for tensor in self.model.parameters()]
        self._buffers = [
            (module._buffers, {key: (value, None if value is None else value.clone()) for key, value in held})
            for module in self.model.modules()
            for held in [list(module._buffers.items())]
        ]
        self._modes = [(module, module.training) for module in self.given.modules()]
        self.base = [tensor.clone() for tensor in self.live]
        try:
            for tensor, _, _ in self._parameters:
                tensor.grad = None  # a loss function may call backward; keep its gradients apart
            self.given.eval()
        except BaseException:  # e.g. Ctrl-C: `with` does not call __exit__ if __enter__ fails
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._restore()
        except KeyboardInterrupt:  # a second Ctrl-C must not leave the weights half restored
            self._restore()
            raise

    @torch.no_grad()
    def _restore(self) -> None:
        self.back()
        for holder, before in self._buffers:
            for key in [key for key in holder if key not in before]:
                del holder[key]
            for key, (tensor, value) in before.items():
                holder[key] = tensor  # a buffer may have been replaced rather than written to
                if tensor is not None and value is not None:
                    tensor.detach().copy_(value)
        for parameter, flag, grad in self._parameters:
            parameter.requires_grad_(flag)
            parameter.grad = grad
        for module, mode in self._modes:
            module.training = mode

    @torch.no_grad()
    def move(self, direction: Sequence[Tensor], length: float) -> None:
        """Set the weights to the original ones plus `length` times `direction`."""
        self.put(self.base, [(direction, length)])

    @torch.no_grad()
    def back(self) -> None:
        """Set the weights to the original ones."""
        torch._foreach_copy_(self.live, self.base)
        torch.clear_autocast_cache()

    @torch.no_grad()
    def put(self, start: Sequence[Tensor], moves: Moves = ()) -> None:
        """Set the weights to `start` plus the sum of length times direction over `moves`."""
        if all(tensor.dtype == dtype for tensor, dtype in zip(self.live, self.dtypes, strict=True)):
            torch._foreach_copy_(self.live, list(start))
            for direction, length in moves:
                torch._foreach_add_(self.live, list(direction), alpha=length)
        else:
            for i, (tensor, dtype) in enumerate(zip(self.live, self.dtypes, strict=True)):
                value = start[i].to(tensor.device, dtype)
                for direction, length in moves:
                    value = value + direction[i] * length
                tensor.copy_(value)
        # Under the caller's autocast, cached casts of the weights outlive a forward pass and would hide the move.
        torch.clear_autocast_cache()

    def warn_of_rounding(self, distance: float, dtype: torch.dtype | None = None) -> None:
        """Warn if the precision of the weights, or `dtype` that they are cast to, is too coarse for that distance."""
        # Rounding a number has a standard deviation of about 0.22 eps times the number.
        rounded = math.hypot(*(0.22 * torch.finfo(dtype or each.dtype).eps * norm([each]) for each in self.live))
        if rounded > COARSE * distance:
            precision = str(dtype or self.live[0].dtype).removeprefix("torch.")
            warnings.warn(
                f"weights in {precision} are rounded by about {rounded:.2g}, which is not small compared with a move "
                f"of {distance:.2g}: use larger radii, or a copy in higher precision",
                stacklevel=3,
            )

    def shaped(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat vector in the parameters' shapes; copies if layout, device or precision differ."""
        shaped = []
        for view, tensor, dtype in zip(split_like(self.live, flat), self.live, self.dtypes, strict=True):
            if view.stride() == tensor.stride() and view.dtype == dtype and view.device == tensor.device:
                shaped.append(view)
            else:  # e.g. channels last: foreach is fast only if strides agree
                shaped.append(torch.empty_like(tensor, dtype=dtype).copy_(view))
        return shaped

    def of(self, state: Source, what: str = "the weights") -> list[Tensor]:
        """Return the tensors of `state` for these parameters, in their order, device and layout."""
        tensors = same_shapes(state, dict(zip(self.names, self.live, strict=True)), what)
        return [torch.empty_like(a, dtype=b.dtype).copy_(b) for a, b in zip(self.live, tensors, strict=True)]

    @torch.no_grad()
    def put_buffers(self, state: Source, what: str = "the weights") -> None:
        """Copy the buffers of `state` into the model; the end of the block restores the old ones."""
        buffers = self.buffers()
        for tensor, value in zip(buffers.values(), same_shapes(state, buffers, what), strict=True):
            tensor.copy_(value)

    def buffers(self) -> dict[str, Tensor]:
        """Return the buffers that a state dict of the model has."""
        return {name: tensor for name, tensor, _, is_buffer in named_tensors(self.model) if is_buffer}

    @contextmanager
    def differentiable(self) -> Iterator[list[Tensor]]:
        """Enable gradients of the chosen parameters only, and yield them."""
        before = [(parameter, parameter.requires_grad) for parameter in self.model.parameters()]
        try:
            for parameter, _ in before:
                parameter.requires_grad_(False)
            for tensor in self.parameters:
                tensor.requires_grad_(True)
            with torch.enable_grad():
                yield self.parameters
        finally:
            for parameter, flag in before:
                parameter.requires_grad_(flag)


def chosen_parameters(model: nn.Module, include: Patterns = None, exclude: Patterns = None) -> dict[str, Tensor]:
    """Return the floating-point parameters whose names match, each once, by canonical name."""
    model = unwrap(model)
    named = {name: tensor for name, tensor, _, is_buffer in named_tensors(model) if not is_buffer}
    matching = {name: named[name] for name in chosen_names(named, tied_names(model), include, exclude, "parameter")}
    for name, tensor in matching.items():
        if tensor.is_complex():
            raise ValueError(f"only real weights can be perturbed, but {name} is complex: exclude it by name")
    chosen = {name: tensor for name, tensor in matching.items() if tensor.is_floating_point()}
    if not chosen:
        raise ValueError(
            f"no floating-point parameter of {type(model).__name__} matches include={include!r}, exclude={exclude!r}"
        )
    for name, tensor in chosen.items():
        if is_lazy(tensor) or tensor.is_meta:
            raise ValueError(f"{name} holds no values yet (lazy or on the meta device): initialize the model first")
        if is_sharded(tensor):
            raise ValueError(f"{name} is sharded over processes: measure flatness on a whole copy of the model")
    return chosen


def by_name(state: Source) -> dict[str, Tensor]:
    """Return parameters and buffers of a module or a state dict by canonical name."""
    if isinstance(state, nn.Module):
        state = unwrap(state).state_dict()
    if not isinstance(state, Mapping):
        raise TypeError(f"weights must be a module or a state dict, got a {type(state).__name__}: load them first")
    return {canonical(name): tensor for name, tensor in state.items()}


def same_shapes(state: Source, like: Mapping[str, Tensor], what: str) -> list[Tensor]:
    """Return the tensors of `state` that have the names of `like`, in its order, if they have its shapes."""
    found = by_name(state)
    for name, tensor in like.items():
        if name not in found or found[name].shape != tensor.shape:
            raise ValueError(
                f"{what} lack {name} of shape {tuple(tensor.shape)}: give a whole state dict of the same network"
            )
    return [found[name].detach() for name in like]


def parameters_by_name(state: Source) -> dict[str, Tensor]:
    """Return the floating-point parameters of a module, or of a state dict all tensors but batch-norm statistics."""
    if isinstance(state, nn.Module):
        return {name: tensor.detach() for name, tensor in chosen_parameters(state).items()}
    return {
        name: tensor
        for name, tensor in by_name(state).items()
        if tensor.is_floating_point() and not is_bn_statistic(name)
    }


def split_like(tensors: Sequence[Tensor], vector: Tensor) -> list[Tensor]:
    """Return views of a vector of weight space in the tensors' shapes."""
    pieces = torch.split(vector, [tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


@torch.no_grad()
def add_terms(totals: Sequence[Tensor], terms: Iterable[Tensor | None]) -> None:
    """Add to each total the term of its parameter; None, as autograd gives it for an unused parameter, adds nothing."""
    for total, term in zip(totals, terms, strict=True):
        if term is not None:
            total += term


def norm(tensors: Sequence[Tensor]) -> float:
    """Return the norm over all tensors, in double precision since it sums millions of squares."""
    squares = [torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64).square() for tensor in tensors]
    return math.sqrt(torch.stack([square.to(squares[0].device) for square in squares]).sum().item())
