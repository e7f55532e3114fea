"""The state of an object of a file in DomainBed's form: captured as tensors and plain values, restored in place.

Captured are numbers, texts, tensors and arrays, in lists and dicts of any depth; modules; whatever has a `state_dict`
(optimizers, schedulers); and the attributes of objects whose class is of such a file. All else is taken as constant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, deque)}
_INSIDE_MODULES = frozenset(vars(nn.Module()))


def capture(value: Any, above: frozenset[int] = frozenset()) -> Any:
    """Return the state of a value; `above` are the objects that contain it."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind: str = "constant"
    content: Any = None
    if id(value) in above:
        return {"kind": kind}
    above |= {id(value)}
    if isinstance(value, Tensor):
        kind, content = ("tensor" if value.is_cpu else "tensor on the device"), value.detach()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        kind, content = "array", torch.from_numpy(value.copy())
    elif isinstance(value, Mapping):
        kind, content = "mapping", [[key, capture(each, above)] for key, each in value.items()]
    elif isinstance(value, list | tuple | set | deque):
        kind = next(name for name, sequence in _SEQUENCES.items() if isinstance(value, sequence))
        content = [capture(each, above) for each in value]
    elif isinstance(value, nn.Module):
        parts = {name: attributes(part, above) for name, part in value.named_modules() if _is_own(part)}
        kind, content = "module", {"tensors": _tensors(value), "attributes": parts}
    elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        kind, content = "stateful", capture(value.state_dict(), above)
    elif _is_own(value):
        kind, content = "object", attributes(value, above)
    return {"kind": kind, "content": content}


def attributes(owner: Any, above: frozenset[int] = frozenset()) -> dict[str, Any]:
    """Return the states of an object's attributes, without the parameters, buffers and modules of a module."""
    inside = _INSIDE_MODULES if isinstance(owner, nn.Module) else frozenset()
    return {name: capture(each, above | {id(owner)}) for name, each in vars(owner).items() if name not in inside}


def restore(value: Any, state: Any, device: torch.device) -> Any:
    """Return the value with this state: the same object where it can be changed in place, else a new one."""
    if not isinstance(state, dict) or state["kind"] == "constant":
        return value if isinstance(state, dict) else state
    kind, content = state["kind"], state["content"]
    if kind.startswith("tensor"):
        if isinstance(value, Tensor) and value.is_leaf and value.shape == content.shape:
            return value.detach().copy_(content) is None or value
        return content.to("cpu" if kind == "tensor" else device)
    if kind == "array":
        return content.numpy()
    if kind == "mapping":
        result = value if isinstance(value, dict) else {}
        states = {key: restore(result.get(key), each, device) for key, each in content}
        result.clear()
        result.update(states)
        return result
    if kind in _SEQUENCES:
        before = [*(value or ()), *[None] * len(content)] if kind != "set" else [None] * len(content)
        items = [restore(old, each, device) for old, each in zip(before, content, strict=False)]
        return deque(items, getattr(value, "maxlen", None)) if kind == "deque" else _SEQUENCES[kind](items)
    if kind == "module":
        _load_tensors(value, content["tensors"])
        for name, states in content["attributes"].items():
            set_attributes(value.get_submodule(name), states, device)
    elif kind == "stateful":
        value.load_state_dict(restore(None, content, device))
    else:
        set_attributes(value, content, device)
    return value


def set_attributes(owner: Any, states: Mapping[str, Any], device: torch.device) -> None:
    """Give the attributes of an object their states."""
    for name, state in states.items():
        vars(owner)[name] = restore(vars(owner).get(name), state, device)


def holds_modules(state: Any) -> bool:
    """Whether a state has that of a module or an optimizer in it."""
    if isinstance(state, dict):
        return state.get("kind") in ("module", "stateful") or any(map(holds_modules, state.values()))
    return isinstance(state, list) and any(map(holds_modules, state))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in named}


@torch.no_grad()
def _load_tensors(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    for name, tensor in saved.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        current = owner._parameters.get(leaf, owner._buffers.get(leaf))
        if current is not None and current.shape == tensor.shape:
            current.copy_(tensor)
        elif leaf in owner._buffers:  # a queue that grew
            owner._buffers[leaf] = tensor.to(next(module.parameters()).device)
        else:
            raise ValueError(f"there is no {name} of shape {tuple(tensor.shape)}")


def _is_own(value: Any) -> bool:
    """Whether the class of an object is of a file in DomainBed's form."""
    return type(value).__module__.partition(".")[0] == "domainbed"
