"""One run as selection, tables and figures see it: settings, records, and whether the run has finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.testbed.results.records import Record
from swad.util.data_path import data_name
from swad.util.names import NO_TARGET

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class RunData:
    """The content of a run directory: settings by name with the role of each, records, and whether it has finished."""

    path: Path
    config: dict[str, Any]
    records: Sequence[Record] | pandas.DataFrame | Callable[[], pandas.DataFrame] = field(repr=False, compare=False)
    """The records, or what returns them; `frame` has them as a data frame."""
    finished: bool
    roles: Mapping[str, str] = field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()
    """What the run itself warned of at its end."""

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """The records as a data frame; see `swad.testbed.results.frames` for its columns."""
        from swad.testbed.results.frames import records_frame

        if callable(self.records):
            return self.records()
        return records_frame(self.records) if isinstance(self.records, (list, tuple)) else self.records

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The held-out domains: usually one; two in runs for the selection "lodo"; none if a run trains on all."""
        target = self.config.get("target")
        if target is None:
            return ()
        return (str(target),) if isinstance(target, str) else tuple(str(name) for name in target)

    @cached_property
    def target(self) -> str:
        """The held-out domains as one text; "none" without any."""
        return "+".join(self.targets) or NO_TARGET

    @cached_property
    def table_name(self) -> str:
        """The dataset, and that there is no target: an accuracy on sources must not stand beside one on a target."""
        return self.dataset if self.targets else f"{self.dataset}, no target"

    @cached_property
    def dataset(self) -> str:
        """The name of the dataset; for the dataset "folder", the name of the user's data."""
        name = str(self.config.get("dataset", "unknown"))
        data = self.config.get("data_dir")
        return data_name(str(data)) or name if name == "folder" and data else name

    @cached_property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.config.get("algorithm", "erm"))

    @property
    def select_by(self) -> str:
        """The metric by which the run chose its `best` weights."""
        return str(self.config.get("select_by", "accuracy"))

    @cached_property
    def trial(self) -> int:
        """The number of the trial, which determines the split into training and validation."""
        return int(self.config.get("trial", 0))

    @cached_property
    def hyperparameters(self) -> dict[str, Any]:
        """The settings that a search varies, with those of the algorithm (`lr`, `batch_size`, ...) by their own names.

        >>> roles = {"trial": "identity", "clip": "hyperparameter", "hyperparameters": "hyperparameter"}
        >>> RunData(Path(), {"trial": 0, "clip": 1.0, "hyperparameters": {"lr": 5e-5}}, (), True, roles).hyperparameters
        {'clip': 1.0, 'lr': 5e-05}
        """
        flat: dict[str, Any] = {}
        for name, value in self.settings("hyperparameter").items():
            flat |= value if name == "hyperparameters" and isinstance(value, dict) else {name: value}
        return flat

    @cached_property
    def search_settings(self) -> str:
        """The settings of a search and of its protocol as text, the same for runs that differ in neither.

        >>> roles = {"lr": "hyperparameter", "trial": "identity", "engine": "machine"}
        >>> first = RunData(Path("a"), {"lr": 5e-5, "trial": 0, "engine": "eager"}, (), True, roles)
        >>> second = RunData(Path("b"), {"lr": 5e-5, "trial": 2, "engine": "graph"}, (), True, roles)
        >>> first.search_settings == second.search_settings
        True
        """
        return json.dumps(self.settings("hyperparameter", "protocol"), default=str)

    @cached_property
    def compared_settings(self) -> dict[str, str]:
        """Hyperparameters and settings of the protocol as text, in which runs of one algorithm may differ."""
        settings = {**self.settings("protocol"), **self.hyperparameters}
        identity = ("dataset", "target", "trial")
        return {name: setting_text(value) for name, value in settings.items() if name not in identity}

    def settings(self, *roles: str) -> dict[str, Any]:
        """Return the settings with one of these roles, sorted by name.

        The role of a setting is declared with its field in `swad.testbed.training.config` and stored in `config.json`:
        identity (names the run), hyperparameter (varied by a search), protocol (must agree for runs to be compared),
        machine (how and where it was computed) or output (which results were kept).
        """
        role = self.roles.get
        return {name: self.config[name] for name in sorted(self.config) if role(name, "hyperparameter") in roles}

    def role(self, name: str) -> str:
        """Return the role of one setting."""
        return self.roles.get(name, "hyperparameter")


def setting_text(value: object) -> str:
    """Return the value of a setting as text.

    >>> setting_text({"crop": 0.8, "flip": 0.5}), setting_text(["swad", "ema"]), setting_text([]), setting_text(True)
    ('crop=0.8, flip=0.5', 'swad, ema', 'none', 'true')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and value:
        return ", ".join(f"{name}={setting_text(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)) and value:
        return ", ".join(map(setting_text, value))
    return "none" if value in (None, [], (), {}) else json.dumps(value, default=str)
