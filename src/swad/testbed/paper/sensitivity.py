"""How much SWAD depends on N_s, N_e and r: each is varied around the paper's value, without training.

One run for each target keeps the mean weights between evaluations. What another setting would have averaged follows
from its recorded validation losses, and the average from the kept segments (`swad.testbed.measurements.tune`). The
paper took N_s and N_e from a search on PACS and r from [1.2, 1.3], and prints no numbers of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from swad.testbed.data import benchmarks
from swad.testbed.measure.saved_run import open_run
from swad.testbed.measurements.tune import Tune
from swad.testbed.paper.reproduction import PaperRuns, first_trial_item
from swad.testbed.paper.trainings import ERM_THREE_WAY
from swad.testbed.results.figures.tuning import sensitivity_figure
from swad.testbed.results.measurement_rows import Row as StoredRow
from swad.testbed.results.report import Report
from swad.testbed.results.tables import Cell, Row, Table
from swad.testbed.results.tuning import ValleySetting
from swad.util.grouping import group_by
from swad.util.names import counted
from swad.util.statistics import mean

VALUES: dict[str, tuple[float, ...]] = {
    "n_converge": (1, 2, 3, 4, 5, 6),
    "n_tolerance": (1, 3, 6, 9, 12),
    "tolerance_ratio": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
}
"""The values of each setting; the others keep the paper's."""

LABELS = {"n_converge": "N_s", "n_tolerance": "N_e", "tolerance_ratio": "r"}


def settings_around(center: ValleySetting) -> dict[str, list[ValleySetting]]:
    """Return the settings that differ from `center` in one value, by the name of that value; `center` is in each.

    >>> around = settings_around(ValleySetting(tolerance_ratio=0.2))
    >>> {name: len(settings) for name, settings in around.items()}
    {'n_converge': 6, 'n_tolerance': 5, 'tolerance_ratio': 6}
    """
    return {
        name: [replace(center, **{name: value}) for value in values]  # type: ignore[arg-type]
        for name, values in VALUES.items()
    }


def _shown(name: str, setting: ValleySetting) -> float:
    """Return the value of a setting as the paper writes it: r is 1 + tolerance_ratio."""
    value = float(getattr(setting, name))
    return 1 + value if name == "tolerance_ratio" else value


def sensitivity_table(dataset: str, by_run: Mapping[str, Sequence[StoredRow]], center: ValleySetting) -> Table:
    """Build the table of one dataset: every setting with its range, and its accuracies next to the paper's setting.

    Args:
        dataset: Its name.
        by_run: Stored rows of the settings, by the target of their run.
        center: The paper's setting.
    """
    rows = [row for of_run in by_run.values() for row in of_run]
    by_setting = group_by(rows, lambda row: str(row["weights"]))
    base = _target(by_setting[center.name])
    table_rows = []
    for name, settings in settings_around(center).items():
        for setting in settings:
            members = by_setting[setting.name]
            steps = [row for row in members if row["side"] == "unseen"]  # once in each run
            mark = "" if all(row["converged"] for row in members) else "*"
            difference = Cell(_target(members) - base, signed=True) if setting != center else Cell(text="0")
            label = f"{LABELS[name]} = {_shown(name, setting):g}" + (" (paper)" if setting == center else "")
            cells = (
                Cell(mean(row["first"] for row in steps), decimals=0),
                Cell(mean(row["last"] for row in steps), decimals=0, mark=mark),
                Cell(mean(row["averaged"] for row in steps), decimals=0),
                Cell(_validation(members)),
                Cell(_target(members)),
                difference,
            )
            table_rows.append(Row(label, cells))
    notes = [
        f"Means over {counted(len(by_run), 'run')} (targets {', '.join(sorted(by_run))}); 60/20/20 split. "
        f"In each row one of the paper’s settings ({center}) is changed.",
        "Other settings are evaluated without training. Do not choose one by its accuracy on the target.",
    ]
    if not all(row["converged"] for row in rows):
        notes.append("* The loss never converged in at least one run, which averages only the end of training.")
    columns = ("t_s", "t_e", "Weights", "Validation, %", "Target, %", "Δ target")
    return Table(f"Sensitivity of SWAD on {dataset}", columns, tuple(table_rows), tuple(notes), "Setting")


def _target(rows: Sequence[StoredRow]) -> float:
    return 100 * mean(row["accuracy"] for row in rows if row["side"] == "unseen")


def _validation(rows: Sequence[StoredRow]) -> float:
    """Return the mean over runs of the mean over their sources; every run has as many."""
    return 100 * mean(row["accuracy"] for row in rows if row["side"] == "seen")


def _build(paper_runs: PaperRuns, dataset: str, names: Sequence[str]) -> Report:
    runs = {
        run.target: open_run(run.path, paper_runs.config.data) for run in paper_runs.first_trial(dataset, ERM_THREE_WAY)
    }
    center = ValleySetting(tolerance_ratio=benchmarks.get(dataset).defaults.tolerance_ratio)
    around = settings_around(center)
    by_run: dict[str, list[StoredRow]] = {target: [] for target in runs}
    for varied in VALUES:
        values = {name: VALUES[name] if name == varied else (getattr(center, name),) for name in VALUES}
        what = Tune(**values, semantics=(center.semantics,), select="oracle")  # type: ignore[arg-type]
        jobs = paper_runs.measure([(run, ()) for run in runs.values()], what)
        for target, job in zip(runs, jobs, strict=True):
            by_run[target] += [row for row in job.rows() if row not in by_run[target]]
    rows = [row for of_run in by_run.values() for row in of_run]
    panels = {}
    for name, members in around.items():
        by_value = {
            _shown(name, setting): [row for row in rows if row["weights"] == setting.name] for setting in members
        }
        panels[f"${LABELS[name]}$"] = {
            "target": [(value, _target(own)) for value, own in by_value.items()],
            "source validation": [(value, _validation(own)) for value, own in by_value.items()],
        }
    marked = {f"${label}$": _shown(name, center) for name, label in LABELS.items()}
    figure = sensitivity_figure(panels, marked, f"{dataset}: SWAD around the paper’s settings (dotted)")
    written = paper_runs.save(figure, "sensitivity", dataset)  # with the dataset also if it is the only one
    return Report((sensitivity_table(dataset, by_run, center),), tuple(written))


ITEMS = (
    first_trial_item(
        "sensitivity",
        "Sensitivity of SWAD to N_s, N_e and r",
        ERM_THREE_WAY,
        _build,
        measures="averages of other ranges, from the kept segments",
    ),
)
