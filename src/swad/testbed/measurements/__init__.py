"""Measurements of saved weights by name, one file each. The folder is the registry: there is no list to edit.

A measurement is a file of this folder, or of a folder named in SWAD_MEASUREMENTS, that says ``MEASUREMENT = <class>``.
Authors import `swad.testbed.measure.base`. Only the requested file is imported.

>>> "corruption" in list_measurements(), get_measurement("Corruption").title
(True, 'Corruption error, %')
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swad.util.jsonl import compressed_path
from swad.util.names import did_you_mean
from swad.util.plugins import Registry

if TYPE_CHECKING:
    from swad.testbed.measure.base import Measurement
    from swad.testbed.results.measured_report import MeasuredReport
    from swad.testbed.results.run_data import RunData
    from swad.testbed.results.surface_report import SurfaceReport


class MeasurementError(ValueError):
    """There is no such measurement, or its file has a mistake; the message says what to do."""


def list_measurements() -> tuple[str, ...]:
    """Return the names of all measurements, sorted; nothing is imported."""
    return FILES.names()


def get_measurement(name: str) -> type[Measurement]:
    """Return the class of a measurement; case, ``-`` and ``_`` in `name` do not matter."""
    if (match := FILES.match(name)) is None:
        known = FILES.names()
        choose = f"choose one of {', '.join(known)}, or name the folder of your own in SWAD_MEASUREMENTS"
        raise MeasurementError(f"there is no measurement {name!r}: {did_you_mean(name, known) or choose}")
    return FILES.get(match)


def stored_reports(runs: Sequence[RunData]) -> tuple[list[MeasuredReport | SurfaceReport], list[str]]:
    """Return a report of every measurement that runs have stored, and what cannot be shown.

    A damaged file must not cost the whole page, nor a mistake in a user's own measurement.
    """
    from swad.testbed.results.imagenet_parts import ImageNetC
    from swad.testbed.results.records import RecordError

    reports: list[MeasuredReport | SurfaceReport] = []
    problems: list[str] = []
    # Looked up once: most runs of a large sweep have no measurement at all.
    files = {run.path: set(os.listdir(run.path)) if run.path.is_dir() else set() for run in runs}
    for name in (*list_measurements(), ImageNetC.name):
        try:
            what: type[Measurement | ImageNetC] = ImageNetC if name == ImageNetC.name else get_measurement(name)
            wanted = {what.file, compressed_path(Path(what.file)).name}
            shown = what.report([run for run in runs if not files[run.path].isdisjoint(wanted)])
            reports += [] if shown is None else [shown]
        except (MeasurementError, RecordError) as error:
            problem = f"Measurements are missing here: {error}."
            if problem not in problems:  # several measurements share a file
                problems.append(problem)
                warnings.warn(f"the page lacks measurements: {error}", stacklevel=2)
    return reports, problems


def _checked(value: object, module: str) -> type[Measurement]:
    from swad.testbed.measure.base import Measurement

    if not (isinstance(value, type) and issubclass(value, Measurement)):
        raise MeasurementError(f"MEASUREMENT must be a subclass of Measurement, got {value!r} in {module}.py")
    if "__dataclass_params__" not in vars(value):
        raise MeasurementError(
            f"{value.__name__} in {module}.py must be a dataclass: put @dataclass(frozen=True) before the class"
        )
    if getattr(value, "name", None) != module:
        raise MeasurementError(f"{value.__name__}.name in {module}.py must be {module!r}: it names command and files")
    if not isinstance(getattr(value, "title", None), str):
        raise MeasurementError(f"{value.__name__} in {module}.py needs a title, such as title = 'Error, %'")
    for field in dataclasses.fields(value):
        if field.default is dataclasses.MISSING:
            raise MeasurementError(f"{value.__name__}.{field.name} in {module}.py needs a default")
    value()  # its own rules hold for the defaults
    return value


FILES = Registry("measurement", __name__, "SWAD_MEASUREMENTS", "MEASUREMENT", _checked, MeasurementError)
