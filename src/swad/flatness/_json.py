"""JSON forms of measured numbers, which keep every bit."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any

import torch
from torch import Tensor

Row = dict[str, Any]
"""One JSON object."""


def json_number(value: Any) -> Any:
    """Return a value that JSON can hold: numbers that are not finite become text, which `float` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def pack(values: Tensor) -> str:
    """Encode numbers as base64 text of doubles, in one row."""
    return base64.b64encode(array("d", values.detach().double().flatten().tolist()).tobytes()).decode()


def unpack(text: str) -> Tensor:
    """Decode the text of `pack` to a 1-D tensor of doubles."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float64)
