"""The average that a saved state holds, without the model that it was taken of."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swad.averaging.rule import Rule
from swad.averaging.span_sums import counted, mean_tensor, newest
from swad.averaging.state import ALONE, TRAJECTORY, average_part, entry, parsed_header
from swad.averaging.sums import WeightSum
from swad.util.warn import warn_caller


def mean_of_state(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the averaged parameters and the buffers as if training had ended where `state_dict` was taken, on the CPU.

    Args:
        state: What `state_dict` of one average returned.
    """
    heads = parsed_header(state["header"])
    average, step = average_part(ALONE), int(heads[TRAJECTORY]["updates"])
    rule = _rule(heads[average]["rule"], heads[average]["state"])
    parts = (average, TRAJECTORY) if heads[average]["shares"] else (average,)
    stored = [(name, head, entry(state, part, name)) for part in parts for name, head in heads[part]["sums"].items()]
    totals = [
        WeightSum(
            _in_order(tensors, "sums"),
            int(head["first"]),
            step if name == "own" else int(head["last"]),  # the open sum of an average alone
            head["weight"],
            _in_order(tensors, "buffers"),
        )
        for name, head, tensors in stored
    ]
    averaged = counted(totals, rule.spans(step))
    if not averaged:
        raise ValueError(f"there is nothing to average yet: {rule.why_empty(step)}")
    if caveat := rule.caveat(step):
        warn_caller(str(caveat), type(caveat))
    _, _, tensors = stored[0]
    cpu = torch.device("cpu")
    means = {name: mean_tensor(averaged, i, cpu) for i, name in enumerate(sorted(tensors["sums"]))}
    buffers = zip(sorted(tensors.get("buffers", {})), newest(averaged).buffers or [], strict=True)
    return means | {name: buffer.to("cpu", copy=True) for name, buffer in buffers}


def _in_order(tensors: Mapping[str, Mapping[str, Tensor]], role: str) -> list[Tensor]:
    return [tensor for _, tensor in sorted(tensors.get(role, {}).items())]


def _rule(name: str, state: Mapping[str, Any]) -> Rule:
    """Return the rule of a state, whose settings are the arguments of its class."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):  # each average is a file
        importlib.import_module(f"swad.averaging.{module.name}")
    known = {cls.__name__: cls for cls in _subclasses(Rule)}  # type: ignore[type-abstract]
    if name not in known:
        raise ValueError(f"the rule of an average must be known, but {name!r} is not: import its module first")
    state = {**known[name].state_defaults, **state}
    rule = known[name](**{setting: state[setting] for setting in known[name].settings})
    rule.load_state_dict(state)
    return rule


def _subclasses(cls: type[Rule]) -> Iterator[type[Rule]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)
