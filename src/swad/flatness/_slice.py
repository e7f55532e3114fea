"""A slice of weight space, given by weights that span it: the common part of planes and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from swad.averaging.tensors import Patterns, as_patterns, matches
from swad.flatness._perturb import BN_STATISTICS, State, by_name, parameters_by_name

Source = State | nn.Module


class Slice:
    """A plane or line in weight space: its corners by name, the first of which is the origin."""

    def __init__(self, corners: Mapping[str, Source], include: Patterns, exclude: Patterns) -> None:
        self.names = spanning_parameters(corners, include, exclude)
        self.corners: dict[str, State] = {corner: copy_state(source) for corner, source in corners.items()}
        self.origin = self._tensors(self.corners["1"], "weights 1")

    def _tensors(self, weights: Source, label: str) -> list[Tensor]:
        tensors, reference = by_name(weights), self.corners["1"]
        for name in self.names:
            if name not in tensors or tensors[name].shape != reference[name].shape:
                raise ValueError(
                    f"{label} lack {name} of shape {tuple(reference[name].shape)}: give weights of the same network"
                )
        return [tensors[name].detach() for name in self.names]

    def _offset(self, weights: Source, label: str = "the weights") -> Tensor:
        origin = flat(self.origin)
        return flat(self._tensors(weights, label)).to(origin.device) - origin

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a vector of weight space as tensors in the parameters' shapes."""
        pieces = torch.split(vector, [tensor.numel() for tensor in self.origin])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, self.origin, strict=True)]


def spanning_parameters(corners: Mapping[str, Source], include: Patterns, exclude: Patterns) -> list[str]:
    """Return the names of the parameters that span a slice; a module among the corners tells them from buffers."""
    modules = [source for source in corners.values() if isinstance(source, nn.Module)]
    names = list(parameters_by_name(modules[0] if modules else corners["1"]))
    wanted, unwanted = as_patterns(include), as_patterns(exclude)
    for pattern in (*wanted, *unwanted):
        if not any(matches(name, [pattern]) for name in names):
            raise ValueError(f"the pattern {pattern!r} matches no parameter; names look like {', '.join(names[:3])}")
    names = [name for name in names if (not wanted or matches(name, wanted)) and not matches(name, unwanted)]
    if not names:
        raise ValueError(f"no parameter matches include={include!r}, exclude={exclude!r}: change the patterns")
    tensors = {
        corner: [name for name in by_name(weights) if name.rpartition(".")[2] not in BN_STATISTICS]
        for corner, weights in corners.items()
    }
    for corner in corners:
        for one, other in ((corner, "1"), ("1", corner)):
            missing = [name for name in tensors[one] if name not in tensors[other]]
            if missing:
                raise ValueError(
                    f"weights {one} have {missing[0]}, which weights {other} lack: give weights of one network"
                )
    return names


def copy_state(source: Source) -> State:
    """Copy weights: a module may be trained on, and a state dict may share its tensors with the evaluated model."""
    return {name: tensor.detach().clone() for name, tensor in by_name(source).items()}


# --- vectors in weight space: one tensor each, in double precision, since their norms sum millions of squares -------


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one vector."""
    return torch.cat([tensor.reshape(-1).to(tensors[0].device) for tensor in tensors]).double()


def dot(a: Tensor, b: Tensor) -> float:
    """Return the inner product of two vectors."""
    return float(torch.dot(a, b))


def length(vector: Tensor) -> float:
    """Return the Euclidean length of a vector."""
    return float(torch.linalg.vector_norm(vector))
