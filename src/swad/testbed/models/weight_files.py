"""Weights in safetensors files: reading them, checking them against their checksum, and loading them into a network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from swad.util.files import require_regular
from swad.util.names import listed, one_line

CHECKSUM, CARD = "swad_sha256", "swad"
"""Keys in the metadata of a weights file that a run wrote: the checksum of its content, and the model card."""


class NetworkError(ValueError):
    """A network cannot be built or its weights cannot be loaded; the message says what to do."""


def load_weights(model: nn.Module, stored: Mapping[str, Tensor], path: Path, ignore: tuple[str, ...] = ()) -> None:
    """Load tensors with timm's names that were read from `path`, in any floating-point precision.

    Tensors with an ignored prefix are left out. Any other that is missing, unknown, of another shape, quantized or not
    finite is an error.
    """
    own = model.state_dict()
    wanted = {name for name in own if not name.startswith(ignore)}
    offered = {name: tensor for name, tensor in stored.items() if not name.startswith(ignore)}
    # Nothing here reads this counter, and half of the published files lack it.
    missing = sorted(name for name in wanted - offered.keys() if not name.endswith("num_batches_tracked"))
    unknown = sorted(offered.keys() - wanted)
    mismatched = sorted(
        f"{name} {_shape(offered[name])} instead of {_shape(own[name])}"
        for name in wanted & offered.keys()
        if offered[name].shape != own[name].shape
    )
    weights = sorted(name for name in wanted & offered.keys() if own[name].is_floating_point())
    quantized = [f"{name} {offered[name].dtype}" for name in weights if not _has_floats(offered[name])]
    infinite = [name for name in weights if _has_floats(offered[name]) and not offered[name].float().isfinite().all()]
    problems = [
        f"{words} {listed(names, 4)}"
        for words, names in (
            ("it lacks", missing),
            ("it has unknown", unknown),
            ("it has", mismatched),
            ("it has no floating-point numbers in", quantized),
            ("it has values that are not finite in", infinite),
        )
        if names
    ]
    if problems:
        raise NetworkError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}; "
            "use the weights of this network, with timm's names"
        )
    with torch.no_grad():
        for name in wanted & offered.keys():
            own[name].copy_(offered[name])


def _has_floats(tensor: Tensor) -> bool:
    """Whether values are floating-point numbers that torch can convert; of packed ones, two to a byte, it cannot."""
    try:
        tensor.reshape(-1)[:1].float()
    except RuntimeError:
        return False
    return tensor.is_floating_point()


def checksum(tensors: Mapping[str, Tensor], card: str) -> str:
    """Return the SHA-256 of weights and their model card, to be stored in the file with them."""
    digest = hashlib.sha256(card.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; a file that a run wrote is compared with its checksum."""
    with open_safetensors(path) as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
        if CHECKSUM in metadata and checksum(tensors, metadata.get(CARD, "")) != metadata[CHECKSUM]:
            raise ValueError("its content does not match its checksum, so it is damaged")
        return tensors


@contextmanager
def open_safetensors(path: Path | str) -> Iterator[Any]:
    """Open a safetensors file; errors in the block say in one line that it cannot be read."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise NetworkError("reading weights needs safetensors: pip install safetensors") from None
    try:
        require_regular(path)
        with safe_open(path, framework="pt") as file:
            yield file
    except NetworkError:
        raise
    except FileNotFoundError:
        raise NetworkError(f"there is no weights file {path}: check the path") from None
    except Exception as error:  # safetensors has an error class of its own, and raises OSError for folders
        reason = one_line(error)
        raise NetworkError(f"cannot read {path} as safetensors: {reason}; use a complete .safetensors file") from None


def head_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Return how the names of the head's tensors begin, as timm says."""
    named = getattr(model, "pretrained_cfg", {}).get("classifier", "head")
    return tuple(f"{name}." for name in ((named,) if isinstance(named, str) else named))


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"
