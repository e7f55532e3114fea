"""The tensors of a model by canonical name, with ties, and patterns that choose among names.

Canonical names lack the parts that `torch.compile`, DDP and activation checkpointing add.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn

from swad.util.names import listed

Patterns = str | Sequence[str] | None

Slot = tuple[dict[str, Any], str]
"""Where a module holds a tensor: its dict of parameters or buffers, and the key."""

_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel, `torch.compile` and Lightning Fabric."""
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"a model must be in Python, got a {type(model).__name__}: average it before it is scripted")
    if isinstance(model, list | tuple):
        raise TypeError(f"a model must be one nn.Module, got a {type(model).__name__}: pass nn.ModuleList(modules)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model must be an nn.Module, got a {type(model).__name__}: pass the model itself")
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif (inner := model._modules.get("_orig_mod", model._modules.get("_original_module"))) is not None:
            model = inner
        else:
            return model


def canonical(name: str) -> str:
    """Return a tensor's name without the parts that wrappers add.

    >>> canonical("_orig_mod.layer1._checkpoint_wrapped_module.weight")
    'layer1.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, Slot, bool]]:
    """Yield each tensor once: its first name, the tensor, the dict and key that hold it, and whether it is a buffer."""
    seen: set[int] = set()
    for found in _stored_tensors(model.named_modules()):
        if id(found[1]) not in seen:
            seen.add(id(found[1]))
            yield found


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return further names of tied parameters and shared buffers, each with the one that `named_tensors` yields."""
    first = {id(tensor): name for name, tensor, _, _ in named_tensors(model)}
    every = _stored_tensors(model.named_modules(remove_duplicate=False))
    return {name: kept for name, tensor, _, _ in every if (kept := first[id(tensor)]) != name}


def _stored_tensors(named_modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor, Slot, bool]]:
    """Yield what a state dict contains, parameters first; tied tensors under each of their names."""
    modules = list(named_modules)
    for is_buffer in (False, True):
        for prefix, module in modules:
            holder = cast(dict[str, Any], module._buffers if is_buffer else module._parameters)
            for key, tensor in holder.items():
                if tensor is None or (is_buffer and key in module._non_persistent_buffers_set):
                    continue
                yield canonical(f"{prefix}.{key}" if prefix else key), tensor, (holder, key), is_buffer


def tensor_at(slot: Slot) -> Tensor | None:
    """Return the tensor in a slot; None if it is empty."""
    holder, key = slot
    return holder.get(key)


def require_match(rule: str, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> None:
    """Raise `rule` with the names that differ, unless both have tensors of the same names and shapes."""
    reshaped = [
        f"{name} {tuple(actual[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in actual and expected[name].shape != actual[name].shape
    ]
    problems = listed_problems(
        missing=[name for name in expected if name not in actual],
        unknown=[name for name in actual if name not in expected],
        of_another_shape=reshaped,
    )
    if problems:
        raise ValueError(f"{rule}; {problems}")


def listed_problems(**names_by_problem: list[str]) -> str:
    """Return the problems that have names, each with the first five of them."""
    return "; ".join(
        f"{problem.replace('_', ' ')} {listed(names, 5)}" for problem, names in names_by_problem.items() if names
    )


def as_patterns(patterns: Patterns) -> tuple[str, ...]:
    """Return name patterns as a tuple, whether one, several or none were given."""
    if patterns is None:
        return ()
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def chosen_names(
    names: Iterable[str], tied: Mapping[str, str], include: Patterns, exclude: Patterns, kind: str = "tensor"
) -> list[str]:
    """Return the names that match shell-style patterns (case matters), each of which must match one.

    A tied tensor is included or excluded under any of its names.

    Args:
        names: The name of every tensor.
        tied: Further names of the tensors, each with the one in `names`.
        include: Patterns to match. By default everything matches.
        exclude: Patterns not to match.
        kind: What an error calls the tensors.
    """
    all_names = {name: [name] for name in names}
    for other, name in tied.items():
        if name in all_names:
            all_names[name].append(other)
    wanted, unwanted = as_patterns(include), as_patterns(exclude)

    def matches(name: str, patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(either, pattern) for either in all_names[name] for pattern in patterns)

    for pattern in (*wanted, *unwanted):
        if not any(matches(name, [pattern]) for name in all_names):
            examples = ", ".join(list(all_names)[:3])
            raise ValueError(f"the pattern {pattern!r} matches no {kind}; names look like {examples}")
    return [name for name in all_names if (not wanted or matches(name, wanted)) and not matches(name, unwanted)]
