"""The content of a `config.json`, for tests that write run directories by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from swad.testbed.training.config import FORMAT, SETTINGS


def stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a run stores them."""
    return {"format": FORMAT, "config": {"section": dict(settings)}, "roles": roles(settings)}


def roles(names: Iterable[str]) -> dict[str, str]:
    """The role of each setting; a name that is no field of a config counts as a hyperparameter."""
    return {name: SETTINGS[name].role if name in SETTINGS else "hyperparameter" for name in names}
