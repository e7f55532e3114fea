"""The state of a trajectory: a JSON header, and the tensors of every part by name.

    {
        "header": '{"version": 3, "parts": {"trajectory": {"updates": 7, ...}, "average": {"rule": ...}}}',
        "trajectory": {"segment": {"sums": {"head.weight": ...}, "buffers": {...}}},
        "average": {"0": {"sums": {...}, "buffers": {...}}},
    }

In a group, the parts are "average swad", "average ema" and so on, and "listener NAME". A state holds only strings,
dicts and tensors, so that `torch.load(weights_only=True)` reads it, and distributed checkpoints reshard it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from swad.averaging.sums import WeightSum
from swad.averaging.tracked import TrackedTensors

VERSION = 3
"""Of the states that are written. It rises with everything that an older version of swad must not overlook."""
OLDEST = 2
"""Of the states that can be read; earlier ones were never released."""
TRAJECTORY = "trajectory"
ALONE = ""
"""The name of the member of a trajectory that has only one."""

State = dict[str, Any]
Sums = dict[str, dict[str, WeightSum]]
"""Sums by part and name."""


def average_part(name: str) -> str:
    """Return the part of a state that belongs to an average.

    >>> average_part("swad"), average_part(ALONE)
    ('average swad', 'average')
    """
    return f"average {name}".strip()


class Saved(ABC):
    """A part of a state: decisions as plain values, and sums of the tensors of `tracked`."""

    tracked: TrackedTensors
    offload = False

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """Return all of the state but the sums, as plain values."""

    def check(self, header: Mapping[str, Any], owner: str) -> None:  # noqa: B027 - some parts refuse nothing
        """Raise, in the name of `owner`, if `load` would refuse the header."""

    @abstractmethod
    def sums(self) -> dict[str, WeightSum]:
        """Return the sums by name; the one named "own" stays on the model's device."""

    @abstractmethod
    def load(self, header: Mapping[str, Any], sums: Mapping[str, WeightSum], step: int) -> None:
        """Continue from a header and sums after update `step`."""

    def is_offloaded(self, name: str) -> bool:
        """Whether a sum is kept in host memory."""
        return self.offload and name != "own"


def pack(parts: Mapping[str, Saved], clone: bool) -> State:
    """Return the state of all parts."""
    sums = {part: saved.sums() for part, saved in parts.items()}
    heads = {
        part: {**saved.header(), "sums": {name: total.header() for name, total in sums[part].items()}}
        for part, saved in parts.items()
    }
    tensors = {
        part: {name: total.tensors(saved.tracked, clone) for name, total in sums[part].items()}
        for part, saved in parts.items()
    }
    return {"header": json.dumps({"version": VERSION, "parts": heads}), **tensors}


def parsed_header(text: str) -> dict[str, Any]:
    """Return the header of every part, or raise if another version wrote it."""
    header = json.loads(text)
    if header.get("version") not in range(OLDEST, VERSION + 1):
        raise ValueError(
            f"this state has version {header.get('version')!r}, expected {OLDEST} to {VERSION}: "
            f"load it with the version of swad that wrote it"
        )
    heads: dict[str, Any] = header.get("parts", {})
    return heads


def read_header(state: Mapping[str, Any], owner: str, parts: Mapping[str, Saved]) -> dict[str, Any]:
    """Return the header of every part of a state, or raise if it cannot continue here.

    Args:
        state: What `pack` returned.
        owner: The class that loads it, for errors.
        parts: What it is loaded into. Parts that the state does not have are left to the caller.
    """
    rule = f"{owner} loads what its state_dict() returned"
    if not isinstance(state, Mapping):
        raise TypeError(f"{rule}, got a {type(state).__name__}: load the file first, and pass its content")
    if not isinstance(state.get("header"), str):
        keys = ", ".join(map(str, list(state)[:3])) or "nothing"
        raise ValueError(f"{rule}, got a dict of {keys}: load weights with model.load_state_dict")
    heads = parsed_header(state["header"])
    if TRAJECTORY not in heads:
        raise ValueError(f"{rule}, but {TRAJECTORY!r} is missing: load the whole state")
    if (average_part(ALONE) in heads) != (average_part(ALONE) in parts):
        saved_by, advice = (
            ("one average", "load it into that average, or build the group with state_dict() of a group")
            if average_part(ALONE) in heads
            else ("a group", "take one average out of it with AverageGroup.member_state(state, name)")
        )
        raise ValueError(f"{rule}, but this state belongs to {saved_by}: {advice}")
    for part, saved in parts.items():
        if part in heads:
            if missing := [key for key in (*saved.header(), "sums") if key not in heads[part]]:
                raise ValueError(f"{rule}, but {missing[0]!r} of {part!r} is missing: load the whole state")
            saved.check(heads[part], part.removeprefix("average").strip() or owner)
    return heads


def read_sums(heads: Mapping[str, Any], state: Mapping[str, Any], parts: Mapping[str, Saved]) -> Sums:
    """Return copies of the sums of all parts that the state has."""
    return {
        part: {
            name: WeightSum.loaded(head, entry(state, part, name), parts[part].tracked, parts[part].is_offloaded(name))
            for name, head in heads[part]["sums"].items()
        }
        for part in parts
        if part in heads
    }


def allocate(heads: Mapping[str, Any], parts: Mapping[str, Saved]) -> State:
    """Return a state with tensors to read saved values into, for distributed checkpoints."""
    return {
        part: {
            name: WeightSum.allocated(head, saved.tracked, saved.is_offloaded(name)).tensors(saved.tracked)
            for name, head in heads[part]["sums"].items()
        }
        for part, saved in parts.items()
    }


def member_state(state: Mapping[str, Any], name: str) -> State:
    """Return the state of one average out of that of its group, as if it had been alone."""
    header = json.loads(state["header"])
    heads, part = header["parts"], average_part(name)
    if part not in heads:
        names = [key.removeprefix("average ") for key in heads if key.startswith("average ")]
        raise ValueError(f"the state has no average {name!r}, only {', '.join(names)}: name one of these")
    trajectory, tensors = dict(heads[TRAJECTORY]), state.get(TRAJECTORY, {})
    if not heads[part]["shares"]:  # the segment is that of others
        trajectory["sums"], tensors = {}, {}
    header["parts"] = {TRAJECTORY: trajectory, average_part(ALONE): heads[part]}
    return {"header": json.dumps(header), TRAJECTORY: tensors, average_part(ALONE): state.get(part, {})}


def entry(state: Mapping[str, Any], part: str, name: str) -> Any:
    """Return the tensors of one sum, or raise if they are missing."""
    try:
        return state[part][name]
    except KeyError:
        raise ValueError(
            f"a state must be loaded as it was saved, but {name!r} of {part!r} is missing: load the whole state"
        ) from None
