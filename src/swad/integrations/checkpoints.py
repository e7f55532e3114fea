"""Averaged weights out of checkpoints, without a model and without a trainer."""

from __future__ import annotations

import argparse
import json
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swad.averaging.mean_of_state import mean_of_state
from swad.averaging.state import ALONE, average_part, member_state, parsed_header
from swad.util.files import atomic_write
from swad.util.names import listed, one_line
from swad.util.packages import require_extra

LIGHTNING_METADATA = "meta.pt"
"""Where a distributed checkpoint of Lightning has all but model and optimizer."""

PLAIN_CLASSES: list[Any] = [argparse.Namespace]
"""What checkpoints of timm contain besides tensors and plain values; it holds attributes and runs no code."""


def averaged_weights(source: str | os.PathLike[str] | Mapping[str, Any], name: str | None = None) -> dict[str, Tensor]:
    """Return the averaged weights in a checkpoint, as if training had ended there: tensors by name, on the CPU.

    Checkpoints hold the state of an average, which is sums of weights. This call divides them, and needs neither the
    model nor the trainer. It reads

    - checkpoints of Lightning, files or folders, with the state of a callback;
    - a folder `checkpoint-N` of Hugging Face, or the `swad.safetensors` in it;
    - checkpoints of timm: `ModelSwad(optimizer=...)`, or else its `state_dict_ema`;
    - what `torch.save` wrote, or a dict in memory, with `average.state_dict()` anywhere in it.

    Nothing is unpickled but tensors and plain values. Sums are float32, and so is the result. It has the averaged
    parameters and the buffers; frozen parameters and further names of tied ones are those of the model:

        model.load_state_dict(swad.averaged_weights("epoch=3.ckpt"), strict=False)

    >>> import torch, swad
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> average = swad.SMA(model, start=0)
    >>> for value in (1., 2., 6.):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    >>> swad.averaged_weights({"swad": average.state_dict()})
    {'weight': tensor([[3.]])}

    Args:
        source: A file or folder, or its content.
        name: Which average, if there are several: the name of the callback, or of the member of a group.
    """
    label = "this mapping" if isinstance(source, Mapping) else os.fspath(source)
    content = source if isinstance(source, Mapping) else _read_content(Path(source))
    states = list(_states(content, ()))
    if not states and name is None and isinstance(content.get("state_dict_ema"), Mapping):
        return dict(content["state_dict_ema"])
    if not states:
        keys = listed(list(map(str, content)), 5) or "nothing"
        raise ValueError(
            f"a checkpoint must hold the state of an average, but {label} has only {keys}: "
            f"pass one that was saved while an average was followed"
        )
    chosen = [state for called, state in states if name in (None, called)]
    if len(chosen) != 1:
        names = ", ".join(called for called, _ in states)
        raise ValueError(f"name must choose one average of {label}, got {name!r}: pass one of {names}")
    return mean_of_state(chosen[0])


def write_state(path: Path, state: Mapping[str, Any], identity: str) -> None:
    """Write the state of an average as one safetensors file: tensors by name, the header in the metadata.

    Args:
        path: The file.
        state: From `state_dict`.
        identity: The checkpoint that the file belongs to.
    """
    from safetensors.torch import save_file

    named = _flattened({part: value for part, value in state.items() if part != "header"}, ())
    tensors = {json.dumps(place): tensor.detach().contiguous() for place, tensor in named}
    with atomic_write(path) as partial:
        save_file(tensors, partial, metadata={"header": state["header"], "identity": identity})


def read_state(path: Path) -> dict[str, Any]:
    """Return a written state in the form that `load_state_dict` takes."""
    state: dict[str, Any] = {"header": metadata(path)["header"]}
    with _open(path) as file:
        for key in file.keys():  # noqa: SIM118 - a file handle, not a dict
            *parents, name = json.loads(key)
            place = state
            for parent in parents:
                place = place.setdefault(parent, {})
            place[name] = file.get_tensor(key)
    return state


def metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    from safetensors import SafetensorError

    try:
        with _open(path) as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({one_line(error)}): use another checkpoint") from None


def _open(path: Path) -> Any:
    with require_extra("reading a .safetensors file"):
        from safetensors import safe_open
    return safe_open(path, framework="pt")


def _flattened(state: Mapping[str, Any], parents: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield the tensors of nested dicts, each with the keys that lead to it."""
    for name, value in state.items():
        if isinstance(value, Tensor):
            yield (*parents, name), value
        else:
            yield from _flattened(value, (*parents, name))


def _read_content(path: Path) -> Mapping[str, Any]:
    """Return what a file holds, or the states in a folder by the names of their files."""
    if (path / LIGHTNING_METADATA).is_file():
        path /= LIGHTNING_METADATA
    if path.is_dir():
        return {
            file.stem: read_state(file) for file in sorted(path.glob("*.safetensors")) if "header" in metadata(file)
        }
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}: pass an existing file or folder")
    if path.suffix == ".safetensors":
        return read_state(path) if "header" in metadata(path) else {}
    try:
        with torch.serialization.safe_globals(PLAIN_CLASSES):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = one_line(error).partition(". ")[0]
        raise ValueError(
            f"{path} must be a file of tensors and plain values, which this is not ({reason}): if you trust it, "
            f"load it yourself and pass the content"
        ) from None
    return content if isinstance(content, Mapping) else {}


def _states(content: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the state of every average in nested dicts, with the name of its callback or else its keys."""
    if not isinstance(content.get("header"), str):
        for key, value in content.items():
            if isinstance(value, Mapping):
                yield from _states(value, (*path, str(key)))
        return
    if average_part(ALONE) in (heads := parsed_header(content["header"])):
        # Lightning keeps the states of callbacks as "SWADCallback[swad]".
        called = [key.partition("[")[2].rstrip("]") for key in path if key.endswith("]")]
        yield called[0] if called else ".".join(path), content
        return
    for part in heads:
        if part.startswith(average_part("")):
            member = part.removeprefix(average_part("")).strip()
            yield member, member_state(content, member)
