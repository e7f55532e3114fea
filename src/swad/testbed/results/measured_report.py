"""One report for every measurement: means, paired tests, tables, a figure and files, from rows of `measured`.

± is the standard error over trials, each the mean over targets. Methods are compared with the first one, paired by
trial; the tests of one table are one family, which Holm's correction counts. Intervals (95 %) stand in comparisons and
bands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swad.testbed.results.compare import TESTS, compare, means, units_of
from swad.testbed.results.figures.style import FORMATS, save_figures
from swad.testbed.results.measured import Quantity, Reading
from swad.testbed.results.tables import Table
from swad.testbed.results.unit_tables import difference_table, mean_table
from swad.util.files import write_text
from swad.util.grouping import group_by
from swad.util.jsonl import json_values
from swad.util.names import NO_TARGET, counted, listed, require_choice

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Units = Mapping[Quantity, "pd.DataFrame"]
"""By quantity: a value for each target and trial (rows) and method (columns)."""

PLACE = ("dataset", "side", "settings")
"""What has tables of its own."""
MAX_POINTS = 7
"""Most points of an axis that a table shows. The last one is always among them."""
NOTE = (
    "Differences are paired by {}, and hold for another training on these targets. p is of one test; corrected p: "
    "Holm, for all tests of this table. ↑ higher, ↓ lower: corrected p of at most 0.05; –: no difference shown. "
    "Intervals are not corrected."
)
ONE_TRIAL = "One trial shows no spread between trainings: no interval, no test, and no difference is claimed."


@dataclass(frozen=True)
class MeasuredReport:
    """What a command prints and writes of a measurement, and what the page shows."""

    what: type[Reading]
    values: pd.DataFrame
    """The rows of `measured`."""
    means: pd.DataFrame
    """dataset side settings quantity method | mean error low high n"""
    tests: pd.DataFrame
    """dataset side settings | the columns `compare.TESTS`: the tests of the tables"""
    differences: pd.DataFrame
    """The same along the axis, for figures: intervals without claims."""
    by_place: Mapping[tuple[str, str, str], tuple[Table, ...]]
    """The tables of each dataset, side and settings."""
    log: bool = False
    """Whether figures have a logarithmic axis."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables."""
        return tuple(table for tables in self.by_place.values() for table in tables)

    def figure(self, dataset: str) -> Figure | None:
        """Draw the curves of a dataset, or what the measurement draws without an axis, if anything."""
        from swad.testbed.results.figures.curves import curves_figure

        what = self.what
        if not what.axis:
            return what.draw(self, dataset)
        points, differences = self.drawn(dataset)
        return curves_figure(points, differences, title=what.title, axis=what.axis, scale=what.scale, log=self.log)

    def drawn(self, dataset: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return means and differences of a dataset along the axis, with the names of their panels."""
        means, differences = (self._along_axis(frame, dataset) for frame in (self.means, self.differences))
        return means, differences

    def _along_axis(self, frame: pd.DataFrame, dataset: str) -> pd.DataFrame:
        frame = frame[(frame["dataset"] == dataset) & frame["quantity"].map(_is_point).astype(bool)]
        return frame.assign(panel=[self.panel(*place) for place in zip(*map(frame.__getitem__, PLACE), strict=True)])

    def panel(self, dataset: str, side: str, settings: str) -> str:
        """Name dataset and side, with the settings in which those of several differ."""
        of_side = [json.loads(other) for name, each, other in self.by_place if (name, each) == (dataset, side)]
        return ", ".join([dataset, side, *_differing(json.loads(settings), of_side)])

    def write(self, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write values, means and tests as CSV, all of it as JSON, tables as Markdown, and figures; return the files.

        Args:
            folder: The directory to write to.
            formats: Formats of the figures.
        """
        name = self.what.name
        texts = {
            f"{name}.csv": self.values.to_csv(index=False),
            f"{name}-means.csv": self.means.to_csv(index=False),
            f"{name}-tests.csv": self.tests.to_csv(index=False),
            f"{name}.json": json.dumps(self.as_json(), ensure_ascii=False, indent=1, allow_nan=False) + "\n",
            f"{name}.md": "\n\n".join(table.markdown() for table in self.tables) + "\n",
        }
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_text(folder / file, text)
        return [*(folder / file for file in texts), *self.save_figures(folder / name, formats)]

    def save_figures(self, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Draw a figure of each dataset, and return the files; `stem` is their path without dataset and suffix."""
        written = []
        datasets = list(dict.fromkeys(self.values["dataset"]))
        for dataset in datasets if formats else ():
            figure = self.figure(dataset)
            if figure is not None:
                of_dataset = "" if len(datasets) == 1 else "-" + dataset.replace(", ", "-").replace(" ", "-")
                written += save_figures(figure, f"{stem}{of_dataset}", formats)
        return written

    def as_json(self) -> dict[str, Any]:
        """Return every number as JSON values: tables as printed, means and tests."""
        tables = [
            {
                "title": table.title,
                "columns": [table.corner, *table.columns],
                "rows": [[row.name, *(cell.printed for cell in row.cells)] for row in table.rows],
                "notes": table.notes,
            }
            for table in self.tables
        ]
        frames = {"means": self.means, "tests": self.tests, "differences": self.differences}
        # nan, which says that there is no number, becomes null; an infinite number becomes text.
        rows = {
            name: [{key: None if value != value else value for key, value in row.items()} for row in records]
            for name, frame in frames.items()
            for records in [frame.to_dict("records")]
        }
        content: dict[str, Any] = json_values({"name": self.what.name, "tables": tables, **rows})
        return content


def report(
    values: pd.DataFrame, what: type[Reading], by_target: str | None = None, log: bool = False
) -> MeasuredReport:
    """Average, compare and tabulate what was measured.

    Args:
        values: Rows of `measured`.
        what: The measurement.
        by_target: A column to tabulate by target, instead of all columns over targets.
        log: Whether figures have a logarithmic axis.
    """
    import pandas as pd

    all_means, all_tests, along, by_place = [], [], [], {}
    all_values = dict(iter(values.groupby(list(PLACE), sort=False)))
    settings_of = group_by(values[list(PLACE)].drop_duplicates().itertuples(index=False), lambda place: place[:2])
    for place, rows in what.shown(values).groupby(list(PLACE), sort=False):
        dataset, side, settings = place
        of_place = dict(zip(PLACE, place, strict=True))
        stated = json.loads(settings)
        several = _differing(stated, [json.loads(other.settings) for other in settings_of[dataset, side]])
        where = ", ".join([dataset, side, *several])
        units = _units(rows)
        shown = _columns(units)
        names = {what.heading.format(quantity): quantity for quantity in shown}
        columns = {name: units[quantity] for name, quantity in names.items()}
        if by_target is not None:
            require_choice("--by-target", by_target, tuple(columns))
            of_quantity = columns[by_target]
            targets = of_quantity.index.unique("target")
            columns = {**{target: of_quantity.loc[[target]] for target in targets}, "mean": of_quantity}
        first = next(iter(units.values()))
        title = f"{what.title}{f', {by_target}' if by_target else ''}: {where}"
        differences = what.differences(all_values[place])
        remarks = "" if differences is None else what.remarks(differences)
        texts = (_averaged_over(first), what.notes(stated), remarks)
        notes = (" ".join(filter(None, texts)), f"Measured with {_in_words(stated)}.")
        style: Any = {"scale": what.scale, "decimals": what.decimals}
        tables = [mean_table(title, columns, notes if stated else notes[:1], **style)]
        tested = {quantity: units[quantity] for quantity in what.compared or shown if quantity in units}
        family = {quantity: each.loc[:, each.columns != what.untested.get(side)] for quantity, each in tested.items()}
        baseline = first.columns[0]
        tests = compare(family, baseline, what.unit)
        if len(tests):
            paired_by = "target and trial" if (tests["unit"] == "runs").any() else "trial"
            test_notes = (NOTE.format(paired_by), *[ONE_TRIAL] * bool((tests["n_trials"] == 1).any()))
            heading = f"Compared with {baseline}: {where}"
            tables.append(difference_table(heading, tests, test_notes, quantity=what.heading, **style))
        by_place[place] = tuple(tables)
        parts = pd.concat({quantity: means(each) for quantity, each in units.items()}, names=["quantity", "method"])
        all_means.append(parts.reset_index().assign(**of_place))
        points = {each: units[each] for each in units if what.axis and _is_point(each)}
        differences = compare(points, baseline, "trials") if differences is None else differences
        along.append(differences.assign(**of_place))
        all_tests.append(tests.assign(**of_place))
    joined = [pd.concat(each, ignore_index=True) for each in (all_means, all_tests, along)]
    mean_columns = [*PLACE, "quantity", "method", "mean", "error", "low", "high", "n"]
    mean_rows, tests, differences = joined[0][mean_columns], *(each[[*PLACE, *TESTS]] for each in joined[1:])
    return MeasuredReport(what, values, mean_rows, tests, differences, by_place, log)


def _units(rows: pd.DataFrame) -> dict[Quantity, pd.DataFrame]:
    """Return the units of every quantity, with methods in the order of the rows.

    Runs that share method, target and trial are averaged. An infinite value has no mean, and counts as missing.
    """
    methods, targets = list(dict.fromkeys(rows["method"])), sorted({*rows["target"]})
    rows = rows.assign(value=rows["value"].where(rows["value"].abs() < math.inf))
    of_runs = rows.groupby(["quantity", "method", "target", "trial"], sort=False)["value"].mean().reset_index()
    by_quantity = of_runs.groupby("quantity", sort=False)
    return {name: units_of(each, targets=targets).reindex(columns=methods) for name, each in by_quantity}


def _columns(units: Units) -> list[Quantity]:
    """Return the quantities of the table: the names, or else the points of the axis, of many evenly chosen ones."""
    if named := [quantity for quantity in units if isinstance(quantity, str)]:
        return [*named]
    points = sorted(quantity for quantity in units if not isinstance(quantity, str))
    step = math.ceil(len(points) / MAX_POINTS)
    return [*points[::-1][::step][::-1]]


def _averaged_over(units: pd.DataFrame) -> str:
    """Say what the means of a table are over, and what ± is."""
    targets, n = list(units.index.unique("target")), means(units)["n"]
    over = "No target" if targets == [NO_TARGET] else f"Mean over {counted(len(targets), 'target')}"
    incomplete = [method for method in n.index if n[method] < n.max()]
    lacks = f" Fewer complete trials: {listed(incomplete, 8)}." if incomplete else ""
    return f"{over}, one trial.{lacks}" if n.max() < 2 else f"{over}, ± standard error over {n.max()} trials.{lacks}"


def _is_point(quantity: Quantity) -> bool:
    return not isinstance(quantity, str)


def _differing(settings: Mapping[str, Any], several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings in which one of several measurements differs from another, in words."""
    names = [name for name in settings if any(other.get(name) != settings[name] for other in several)]
    return [f"{name.replace('_', ' ')} {_text(settings[name])}" for name in names]


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_text(value)}" for name, value in settings.items())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value)) or "none"
    return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
