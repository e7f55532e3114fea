"""A weighted mean of checkpoints, tensor by tensor.

Memory: the result, and for one group of tensors at a time their running mean and the part of one checkpoint's file that
is being read. The number of checkpoints does not matter.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from swad.merging.checkpoints import Checkpoint, CheckpointError, name_of, opened
from swad.tensors.names import require_match
from swad.tensors.shards import accumulator
from swad.util.files import atomic_write
from swad.util.names import listed
from swad.util.packages import require_extra
from swad.util.version import __version__

GROUP_BYTES = 1 << 26
"""Size of the tensors that are averaged together: each checkpoint is opened once for every group."""

METADATA = "swad_merge"
"""Key in the metadata of a safetensors file: the merged checkpoints and their coefficients, as JSON."""

Progress = Callable[[str, int, int | None], None]


@torch.no_grad()
def weighted_mean(
    checkpoints: Sequence[Checkpoint], coefficients: Sequence[float], progress: Progress | None = None
) -> dict[str, Tensor]:
    """Return sum c_j theta_j / sum c_j as a state dict of new tensors, with the dtypes of the last checkpoint.

    It is a running mean in float32 (float64 where the tensors are), which moves to each checkpoint by its share of what
    was counted so far. So a tensor that is the same in all of them, such as a frozen one, stays bit-equal. Integers and
    booleans, such as the counters of batch norms, are those of the last checkpoint; names that share a tensor in it
    share one in the result, if their means agree.

    Args:
        checkpoints: The checkpoints, which must have tensors of the same names and shapes.
        coefficients: How much each counts. One that counts nothing is not read.
        progress: Called with a description, the files read so far and how many there will be.
    """
    counted = [(checkpoint, share) for checkpoint, share in zip(checkpoints, coefficients, strict=True) if share]
    chosen = [checkpoint for checkpoint, _ in counted]
    expected = require_same_tensors(chosen)
    groups = list(_groups(expected))
    means: dict[str, Tensor] = {}
    for number, group in enumerate(groups):
        total = 0.0
        for index, (checkpoint, share) in enumerate(counted):
            total += share
            with opened(checkpoint) as tensors:
                for name in group:
                    _move(means, name, tensors[name], share / total)
            if progress is not None:
                progress("merging", number * len(counted) + index + 1, len(groups) * len(counted))
        for name in group:
            # A finite sum has no other terms, and is cheaper to find; a sum of finite ones may overflow.
            if not means[name].sum().isfinite() and not means[name].isfinite().all():
                means[name] = _same_in_all(name, chosen)
            means[name] = means[name].to(expected[name].dtype)
    _tie(means, chosen[-1])
    return means


def _move(means: dict[str, Tensor], name: str, value: Tensor, share: float) -> None:
    """Move the mean of one tensor toward its value in the next checkpoint."""
    if name not in means or not _is_averaged(value):
        means[name] = value.to(accumulator(value) if _is_averaged(value) else value.dtype, copy=True)
    else:
        means[name].lerp_(value.to(means[name].dtype), share)


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _groups(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Split the names, so that the tensors of each part are not larger than `GROUP_BYTES` or one tensor."""
    group: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if group and size + tensor.nbytes > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += tensor.nbytes
    yield group


def require_same_tensors(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """Return the tensors of the last checkpoint without values; raise unless all have the same names and shapes."""
    with opened(checkpoints[-1]) as tensors:
        expected = {name: tensor.to("meta") for name, tensor in tensors.items()}
    packed = [name for name, tensor in expected.items() if _is_averaged(tensor) and tensor.dtype.itemsize < 2]
    if packed:
        raise CheckpointError(
            f"merged weights must have at least 16 bits, got fewer in {listed(packed)} of {name_of(checkpoints[-1])}: "
            f"merge before quantizing"
        )
    for checkpoint in checkpoints[:-1]:
        rule = f"merged checkpoints must be of one architecture: {name_of(checkpoint)} does not fit "
        rule += name_of(checkpoints[-1])
        with opened(checkpoint) as tensors:
            try:
                require_match(rule, expected, tensors)
            except ValueError as error:
                raise CheckpointError(str(error)) from None
            mixed = [name for name in expected if _is_averaged(tensors[name]) != _is_averaged(expected[name])]
            if mixed:
                raise CheckpointError(
                    f"{rule}; integers in one and floating-point numbers in the other {listed(mixed)}"
                )
    return expected


def _same_in_all(name: str, checkpoints: Sequence[Checkpoint]) -> Tensor:
    """Return a tensor with infinite values that is the same in all checkpoints, such as a mask of attention."""
    values = []
    for checkpoint in checkpoints:
        with opened(checkpoint) as tensors:
            values.append(tensors[name].clone())
    if all(value.equal(values[0]) for value in values):  # nan equals nothing
        return values[0]
    infinite = (each for each, value in zip(checkpoints, values, strict=True) if not value.isfinite().all())
    bad = name_of(next(infinite, checkpoints[-1]))
    raise CheckpointError(f"merged weights must be finite, but {name} in {bad} is not: leave {bad} out")


def _tie(means: dict[str, Tensor], checkpoint: Checkpoint) -> None:
    """Let names share a tensor that share one in the checkpoint."""
    first: dict[object, str] = {}
    with opened(checkpoint) as tensors:
        for name in means:
            tensor = tensors[name]
            kept = first.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype), name)
            if kept != name and tensor.numel() and means[name].equal(means[kept]):
                means[name] = means[kept]


def save(
    path: str | os.PathLike[str],
    means: Mapping[str, Tensor],
    checkpoints: Sequence[Checkpoint],
    coefficients: Sequence[float],
) -> None:
    """Write merged weights as safetensors, atomically; the metadata says what was merged.

    Names that share a tensor get a copy each, so that the file loads strictly.
    """
    save_file = require_safetensors()
    stored: set[int] = set()
    tensors = {}
    for name, tensor in means.items():
        tensors[name] = tensor.clone() if tensor.data_ptr() in stored else tensor.contiguous()
        stored.add(tensor.data_ptr())
    metadata = {"format": "pt", METADATA: json.dumps(described(checkpoints, coefficients))}
    with atomic_write(path, follow_link=True) as partial:
        save_file(tensors, partial, metadata=metadata)


def described(checkpoints: Sequence[Checkpoint], coefficients: Sequence[float]) -> dict[str, Any]:
    """Return which checkpoints were merged and how much each counts, as plain values."""
    total = math.fsum(coefficients)
    parts = zip(checkpoints, coefficients, strict=True)
    merged = [{"checkpoint": name_of(checkpoint), "coefficient": share / total} for checkpoint, share in parts if share]
    return {"version": __version__, "merged": merged}


def require_safetensors() -> Callable[..., None]:
    """Return `safetensors.torch.save_file`, or raise with the install line."""
    with require_extra("writing merged weights"):
        from safetensors.torch import save_file
    return save_file  # type: ignore[no-any-return]
