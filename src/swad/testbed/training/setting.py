"""The declaration of a setting: its role, help text and bounds, written once with the field.

`setting` declares a field of a dataclass; `Setting` is the same declaration for whatever is derived from it, and
`settings_of` collects those of a class. `add_args` derives the `Args:` of a docstring, which `help()` shows.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from swad.testbed.results.records import MAX_COUNT
from swad.util.options import Bounds, choices_of, problem

Role = Literal["identity", "hyperparameter", "protocol", "machine", "output"]
"""The purpose of a field.

identity:       names the run: dataset, algorithm, target, trial, seed
hyperparameter: varied by a search; selection chooses among its values
protocol:       must agree for runs to be compared; the report warns where it does not
machine:        how and where the run is computed; never distinguishes two runs
output:         which results are kept besides the averages; never distinguishes two runs
"""


def setting(
    default: Any = MISSING,
    *,
    help: str,
    role: Role | None = None,
    factory: Any = MISSING,
    free_on_resume: bool | None = None,
    **bounds: float,
) -> Any:
    """Declare a field of `RunConfig`, or of another dataclass whose fields are options.

    Args:
        default: The default; without one the field is required.
        help: One or two sentences, shown by `--help`, by `help()` and in the reference.
        role: The purpose of a field of `RunConfig`.
        factory: Makes the default, where it is mutable.
        free_on_resume: Whether a resumed run may change it. By default `machine` and `output` fields may change.
        bounds: Those of a number: minimum, maximum, above and below, as in `swad.util.options.Bounds`.
    """
    free = role in ("machine", "output") if free_on_resume is None else free_on_resume
    metadata = {"role": role, "help": help, "free_on_resume": free, "bounds": Bounds(**bounds)}
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)


@dataclass(frozen=True)
class Setting:
    """The declaration of one field."""

    name: str
    section: str
    annotation: Any
    default: Any
    required: bool
    role: Role | None
    help: str
    free_on_resume: bool
    bounds: Bounds = dataclasses.field(default_factory=Bounds)

    @property
    def doc(self) -> str:
        """The entry of the setting in a docstring: its name, type, default and help text.

        >>> Setting("steps", "training", int | None, None, False, "protocol", "Optimizer steps.", False).doc
        'steps (int | None = None): Optimizer steps.'
        """
        names = [kind.__name__ if isinstance(kind, type) else str(kind) for kind in self.types]
        names = [re.sub(r"\b(typing|collections\.abc)\.", "", name) for name in names]
        default = ", required" if self.required else f" = {self.default!r}"
        return f"{self.name} ({' | '.join([*names, 'None'] if self.optional else names)}{default}): {self.help}"

    @property
    def is_converted(self) -> bool:
        """Whether values are converted when a section is built: to a path, a list or a dictionary."""
        return any((get_origin(kind) or kind) in (Path, tuple, Mapping) for kind in self.types)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal; empty for other types."""
        return choices_of(self.types)

    @property
    def types(self) -> tuple[Any, ...]:
        """The types allowed besides None."""
        union = get_origin(self.annotation) in (Union, types.UnionType)
        members = get_args(self.annotation) if union else (self.annotation,)
        return tuple(member for member in members if member is not type(None))

    @property
    def optional(self) -> bool:
        """Whether None is allowed."""
        return type(None) in get_args(self.annotation)

    def problem(self, value: Any) -> str | None:
        """Say how a value violates the declared type, choices or bounds; None if it does not."""
        if value is None and self.optional:
            return None
        if broken := problem(self.name, value, self.types, self.bounds):
            return broken
        too_large = type(value) is int and value >= MAX_COUNT  # results could not be read
        return f"{self.name} must be below {MAX_COUNT}, got {value!r}" if too_large else None


def settings_of(cls: type, sections: Mapping[str, str] | None = None) -> dict[str, Setting]:
    """Return the declared settings of a dataclass by name, in the order of the fields.

    Args:
        cls: The dataclass.
        sections: The section that starts with a field, by the name of the field.
    """
    section, found, hints = "", {}, get_type_hints(cls)
    for field in dataclasses.fields(cls):
        section = (sections or {}).get(field.name, section)
        if "help" in field.metadata:
            made = None if field.default_factory is MISSING else field.default_factory()
            default = made if field.default is MISSING else field.default
            required = field.default is MISSING and field.default_factory is MISSING
            found[field.name] = Setting(field.name, section, hints[field.name], default, required, **field.metadata)
    return found


def add_args(documented: Any, entries: Iterable[str]) -> None:
    """Append entries to the `Args:` of the docstring of a class or function, so that `help()` shows them.

    >>> def train(steps):
    ...     '''Train a network.'''
    >>> add_args(train, ["steps (int, required): Optimizer steps."])
    >>> print(train.__doc__)
    Train a network.
    <BLANKLINE>
    Args:
        steps (int, required): Optimizer steps.
    """
    if documented.__doc__ is None:  # python -OO removes docstrings
        return
    text = inspect.cleandoc(documented.__doc__)
    if "\nArgs:\n" not in text:
        text += "\n\nArgs:"
    wrapper = textwrap.TextWrapper(
        116, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False
    )
    documented.__doc__ = "\n".join([text, *(wrapper.fill(entry) for entry in entries)])
