"""Stored rows of any measurement as one tidy frame: a value for each run, weights, side and quantity.

    measured    dataset algorithm weights target trial side | quantity value | method settings

A `Reading` says how the rows of a measurement become numbers, and how the numbers are shown. Reading, averaging,
comparing and showing are the same for all: `swad.testbed.results.measured_report` builds everything from this frame.
`settings` are those of the measurement as JSON; values of other settings are never averaged.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from swad.testbed.results.labels import algorithm_label, weights_label
from swad.testbed.results.measurement_rows import Row, last_shown, read_rows
from swad.testbed.results.records import RecordError
from swad.testbed.results.run_data import RunData
from swad.util.jsonl import stored_path

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMNS = (
    *("dataset", "algorithm", "weights", "target", "trial", "side"),
    *("quantity", "value", "method", "settings"),
)
SIDES = {"seen": "Seen domains", "unseen": "Unseen domain"}
"""Images of the sources, and of the held-out domain; as figures name them."""

Quantity = str | float
"""A name, which is a column of the table, or a number, which is a point on the axis."""
Case = tuple[Any, ...]
"""The values of a reading's `fields` in one row."""

NOT_OF_VALUES = ("v", "key", "kind", "mixed_groups", "measure", "line")
"""Fields of stored settings in which runs may differ and still be averaged."""
NOT_FINITE = ("inf", "-inf", "nan")
"""How JSON has the numbers that it lacks."""


class Reading:
    """How stored rows become numbers, and how the numbers are shown."""

    name: ClassVar[str]
    """Name of the measurement, of its file of code, of its command, and of what it writes."""
    title: ClassVar[str]
    """What the numbers are, in titles of tables and on the vertical axis."""
    axis: ClassVar[str] = ""
    """Name of the horizontal axis, for numbers along one, such as a radius."""
    heading: ClassVar[str] = "{}"
    """Heading of a column: a format of the quantity."""
    compared: ClassVar[tuple[Quantity, ...]] = ()
    """Quantities that methods are compared in; empty: all that the table shows."""
    scale: ClassVar[float] = 100.0
    """Factor of numbers in tables and figures: 100 for fractions, which are shown in percent."""
    decimals: ClassVar[int | None] = 1
    """Decimals in tables; None: more for small numbers."""
    note: ClassVar[str] = ""
    """What a reader of the table must know."""
    file: ClassVar[str]
    """File in the run directory. Default: NAME.jsonl."""
    kind: ClassVar[str] = "measured"
    """What the rows say as `kind`."""
    of: ClassVar[str] = "loss"
    """The `measure` in stored settings, which tells two measurements of one kind apart."""
    fields: ClassVar[tuple[str, ...]] = ()
    """Fields that tell the rows of one set of weights and domain apart; the last row of each counts."""
    by_algorithm: ClassVar[bool] = False
    """Whether every algorithm has tables of its own."""
    unit: ClassVar[str] = "trials"
    """Unit of the tests: targets of a trial may vary together, so trials; see `swad.testbed.results.compare.UNITS`."""
    untested: ClassVar[Mapping[str, str]] = {}
    """By side a method that was chosen by the values shown, so that a test would always favor it."""
    columns: ClassVar[Mapping[str, Any]] = {}
    """Fields that a row must have besides weights, domain and side, with their types."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls) and "file" not in vars(cls):
            cls.file = f"{cls.name}.jsonl"

    @classmethod
    def numbers(cls, rows: Sequence[Row]) -> dict[Quantity, float]:
        """Return numbers by quantity, from the rows of one set of weights on one domain.

        Names are columns of the table. Numbers lie on `axis` and are drawn; without any name they are columns, too.
        """
        raise NotImplementedError

    @classmethod
    def shown(cls, values: pd.DataFrame) -> pd.DataFrame:
        """Return the methods that tables show, as rows of `measured` like `values`. Default: all."""
        return values

    @classmethod
    def differences(cls, values: pd.DataFrame) -> pd.DataFrame | None:
        """Return the tests behind a figure without an axis, of the values of one dataset, side and settings."""
        return None

    @classmethod
    def remarks(cls, differences: pd.DataFrame) -> str:
        """Return what to say below a table of those tests."""
        return ""

    @classmethod
    def draw(cls, report: Any, dataset: str) -> Figure | None:
        """Draw a figure of a dataset for a measurement without an axis."""
        return None

    @classmethod
    def covered(cls, cases: Collection[Case]) -> dict[str, Any]:
        """Describe the cases that all weights have, as further settings."""
        return {}

    @classmethod
    def notes(cls, settings: Mapping[str, Any]) -> str:
        """Return the note below a table of values of these settings."""
        return cls.note


def measured(runs: Iterable[RunData], what: type[Reading], weights: Collection[str] = ()) -> pd.DataFrame:
    """Read the last measurement of every run; runs without one have no rows. The columns are `COLUMNS`.

    A value is the mean over the domains of a side. Only cases that all weights, runs and domains of a side have count.
    Methods are in the order in which their weights were requested, since the others are compared with the first; those
    of ERM come first.

    Args:
        runs: The runs.
        what: The measurement.
        weights: Some of the weights; by default all that were requested.
    """
    import pandas as pd

    # By dataset, side and settings; then run and weights; then domain; then case.
    found: dict[tuple[str, str, str], dict[tuple[int, str], dict[str, dict[Case, Row]]]] = {}
    # Of the trainings of the imagenet recipe, the one that decays to zero is ERM.
    ordered = sorted(runs, key=lambda run: (run.algorithm != "erm", run.config.get("lr_schedule") != "decay"))
    for number, run in enumerate(ordered):
        settings, rows = _shown(run, what)
        of_algorithm = f", {algorithm_label(run.algorithm)}" if what.by_algorithm and run.algorithm != "erm" else ""
        dataset = f"{run.table_name}{of_algorithm}"
        for row in rows:
            if not weights or row["weights"] in weights:
                units = found.setdefault((dataset, row["side"], settings), {})
                domains = units.setdefault((number, row["weights"]), {})
                domains.setdefault(row["domain"], {})[tuple(row[field] for field in what.fields)] = row
    lines = []
    for (dataset, side, settings), units in sorted(found.items()):
        shared = set.intersection(*(set(cases) for domains in units.values() for cases in domains.values()))
        described = json.dumps({**json.loads(settings), **what.covered(shared)})
        for (number, name), domains in units.items():
            run = ordered[number]
            place = (dataset, run.algorithm, name, run.target, run.trial, side)
            for quantity, value in _mean_over_domains(what, domains.values(), shared):
                lines.append((*place, quantity, value, weights_label(run, name), described))
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _mean_over_domains(
    what: type[Reading], domains: Iterable[Mapping[Case, Row]], shared: Collection[Case]
) -> Iterator[tuple[Quantity, float]]:
    parts = [what.numbers([row for case, row in cases.items() if case in shared]) for cases in domains]
    for quantity in parts[0]:
        yield quantity, fmean(part[quantity] for part in parts if quantity in part)


def _shown(run: RunData, what: type[Reading]) -> tuple[str, list[Row]]:
    """Return settings as JSON, and the rows of the weights that were requested last, in that order."""
    file = stored_path(run.path / what.file)
    rows = [{**row, "line": number} for number, row in enumerate(read_rows(run.path, what.file), start=1)]
    shown = last_shown(rows, what.kind, measure=what.of)
    if shown is None:
        return "", []
    settings, found = shown
    mark = next(row for row in reversed(rows) if row["kind"] == "shown" and row["key"] == settings["key"])
    where = f"{file}, line {mark['line']}"
    if lacking := [name for name in ("weights", "fingerprints") if name not in mark]:
        raise _damaged(where, f"without {lacking[0]}")
    mark = _converted(mark, {"weights": list[str], "fingerprints": list[str], "options": dict[str, Any]}, file)
    if len(mark["weights"]) != len(mark["fingerprints"]):
        raise _damaged(where, "weights and fingerprints differ in number")
    found = [_checked(row, what, file) for row in found]
    # Weights may have been trained again. If measuring the new ones was interrupted, the old ones are shown.
    current = dict(zip(mark["weights"], mark["fingerprints"], strict=True))
    place = {name: number for number, name in enumerate(current)}
    found = [row for row in found if row["weights"] in current and row.get("fingerprint") == current[row["weights"]]]
    settings = {**settings, **mark.get("options", {})}
    stated = {name: value for name, value in settings.items() if name not in NOT_OF_VALUES}
    return json.dumps(stated, sort_keys=True), sorted(found, key=lambda row: place[row["weights"]])


def _checked(row: Row, what: type[Reading], file: Path) -> Row:
    """Return a row with the types that its reading declares, or raise an error of one line that says where it is."""
    kinds = {"weights": str, "domain": str, "side": str, **dict.fromkeys(what.fields, Any), **what.columns}
    if lacking := [name for name in kinds if name not in row]:
        raise _damaged(f"{file}, line {row['line']}", f"without {lacking[0]}")
    return _converted(row, kinds, file)


def _converted(row: Row, kinds: Mapping[str, Any], file: Path) -> Row:
    """Return a row whose values have these types, where it has them."""
    try:
        import msgspec
    except ImportError:
        raise ImportError("reading measurements needs msgspec: pip install 'swad[report]'") from None
    converted = dict(row)
    for name in row.keys() & kinds.keys():
        if kinds[name] is float and row[name] in NOT_FINITE:
            converted[name] = float(row[name])
        else:
            try:
                converted[name] = msgspec.convert(row[name], kinds[name])
            except msgspec.ValidationError as error:
                raise _damaged(f"{file}, line {row['line']}", f"{name}: {error}") from None
    return converted


def _damaged(place: str, reason: str) -> RecordError:
    return RecordError(f"{place} is damaged ({reason}): remove this line, or the file, and measure again")
