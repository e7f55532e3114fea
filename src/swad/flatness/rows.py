"""Measured numbers as JSON, which keeps every bit."""

from __future__ import annotations

import base64
from array import array
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor

from swad.util.jsonl import json_values

Row = dict[str, Any]
"""One JSON object."""


@dataclass(frozen=True, slots=True)
class JsonRow:
    """A row of measured numbers."""

    def as_dict(self) -> Row:
        """Return the row as JSON values; numbers that are not finite become text."""
        return cast(Row, json_values(asdict(self)))


def pack(values: Tensor) -> str:
    """Encode numbers as base64 text of doubles, in one row."""
    return base64.b64encode(array("d", values.detach().double().flatten().tolist()).tobytes()).decode()


def unpack(text: str) -> Tensor:
    """Decode the text of `pack` to a 1-D tensor of doubles."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float64)
