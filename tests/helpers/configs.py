"""The content of a `config.json`, for tests that write run directories by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swad.training.config import FORMAT, SETTINGS


def stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a run stores them; a name that is no field of a config counts as a hyperparameter."""
    roles = {name: SETTINGS[name].role if name in SETTINGS else "hyperparameter" for name in settings}
    return {"format": FORMAT, "config": {"section": dict(settings)}, "roles": roles}
