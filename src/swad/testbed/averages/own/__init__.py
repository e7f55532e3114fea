"""Averages of your own, one file each, in the folders that the environment variable SWAD_AVERAGES names.

The folders are separated like PATH. The average's name is the file's name, and the file says ``AVERAGE = <class>``, a
subclass of `swad.Rule`. Its parameters are the options of the average; a parameter `plan` gets the length of the
training (`swad.testbed.averages.registry.Plan`).
"""

from __future__ import annotations

from swad.averaging.rule import Rule
from swad.util.plugins import Registry


class AverageError(ValueError):
    """An average that cannot be built; the message is one line that says what to do."""


def _check(rule: object, name: str) -> type[Rule]:
    if isinstance(rule, type) and issubclass(rule, Rule):
        return rule
    raise AverageError(f"AVERAGE must be a subclass of swad.Rule, got {rule!r} in {name}.py")


FILES = Registry("average", __name__, "SWAD_AVERAGES", "AVERAGE", _check, AverageError)
