"""Other settings of SWAD on finished runs: what each averages, how it scores, and which one is chosen.

`swad.testbed.experiments.tune` makes the rows; this module chooses among them and prints them. The choice is by
accuracy on the sources' validation splits. The target's accuracy decides nothing but the choice named `oracle`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from swad.testbed.results.labels import algorithm_label
from swad.testbed.results.tables import Cell, Row, Table, csv_text, percent_cell
from swad.util.grouping import group_by
from swad.util.names import counted
from swad.util.statistics import mean

TuneSelect = Literal["iid", "oracle"]
"""Choose a setting by the sources' validation accuracy, or by the target's."""


@dataclass(frozen=True)
class ValleySetting:
    """The settings of SWAD: N_s, N_e, r - 1, and which definition is followed.

    >>> print(ValleySetting(), ValleySetting(5, 10, 0.2, "text"), sep="; ")
    N_s 3, N_e 6, r 1.3; N_s 5, N_e 10, r 1.2, text
    """

    n_converge: int = 3
    n_tolerance: float = 6
    tolerance_ratio: float = 0.3
    semantics: str = "paper"

    def __str__(self) -> str:
        definition = "" if self.semantics == "paper" else f", {self.semantics}"
        return f"N_s {self.n_converge}, N_e {self.n_tolerance:g}, r {1 + self.tolerance_ratio:g}{definition}"


@dataclass(frozen=True)
class TuneRow:
    """What one setting averages in one run, and the accuracy of that average where it was evaluated."""

    run: str
    """The run directory."""
    dataset: str
    """The dataset, and whether there is no target: validation accuracies are means over other domains then."""
    algorithm: str
    target: str
    trial: int
    setting: ValleySetting
    spans: str
    """The averaged updates, as text."""
    first_step: int
    last_step: int
    n_averaged: int
    first_loss: float
    """The validation loss at the first evaluation in the range."""
    threshold: float | None
    """None if the loss never converged; the range is then the end of training."""
    validation: float | None = None
    """Mean accuracy on the sources' validation splits."""
    target_in: float | None = None
    """Accuracy on the target's in split, which is reported."""
    target_out: float | None = None
    """Accuracy on the target's out split, which the oracle chooses by."""

    @property
    def group(self) -> tuple[str, str]:
        """Dataset and algorithm: the runs for which one setting is chosen."""
        return self.dataset, self.algorithm


def by_group(rows: Iterable[TuneRow]) -> dict[tuple[str, str], list[TuneRow]]:
    """Return the rows by dataset and algorithm."""
    return group_by(rows, lambda row: row.group)


# ------------------------------------------------------------ choosing a setting


def choose(
    rows: Sequence[TuneRow],
    select: TuneSelect = "iid",
    *,
    preferred: Iterable[ValleySetting] = (),
    counts_from: str | None = None,
) -> dict[tuple[str, str], ValleySetting]:
    """Choose a setting for every dataset and algorithm: the one with the highest mean accuracy over the runs.

    Args:
        rows: Every setting on every run.
        select: "iid" sees the sources' validation accuracy alone; "oracle" sees the target's out split alone.
        preferred: Among equals the setting most like one of these wins, e.g. those that the runs were trained with.
        counts_from: Choose N_s, N_e and the definition on this dataset, and r on each dataset by itself. The paper
            took PACS.
    """
    preferred = list(preferred)
    means = {group: score_settings(members, select) for group, members in by_group(rows).items()}
    chosen = {group: best(scores, preferred) for group, scores in means.items() if scores}
    if counts_from is None:
        return chosen
    require_dataset(counts_from, (dataset for dataset, _ in chosen))
    names = {algorithm: setting for (dataset, algorithm), setting in chosen.items() if dataset == counts_from}
    for (dataset, algorithm), scores in means.items():
        if scores and algorithm in names:
            counts = names[algorithm]
            same = {s: score for s, score in scores.items() if _counts(s) == _counts(counts)}
            chosen[dataset, algorithm] = best(same, preferred)
    return chosen


def require_dataset(counts_from: str, datasets: Iterable[str]) -> None:
    """Require that N_s and N_e are chosen on a dataset that has runs."""
    known = sorted(set(datasets))
    if counts_from not in known:
        raise ValueError(f"N_s and N_e cannot be chosen on {counts_from}: the evaluated runs are on {', '.join(known)}")


def score_settings(rows: Iterable[TuneRow], select: TuneSelect = "iid") -> dict[ValleySetting, float]:
    """Return the mean accuracy of every setting over the runs on which all settings were evaluated."""
    scores: dict[ValleySetting, list[float]] = {}
    for row in rows:
        accuracy = row.validation if select == "iid" else row.target_out
        if accuracy is not None:
            scores.setdefault(row.setting, []).append(accuracy)
    most = max(map(len, scores.values()), default=0)
    return {setting: mean(values) for setting, values in scores.items() if len(values) == most}


def best(scores: Mapping[ValleySetting, float], preferred: Sequence[ValleySetting] = ()) -> ValleySetting:
    """Return the setting with the highest score; among equals the one most like a preferred setting, then the first.

    >>> equal = {ValleySetting(1): 0.8, ValleySetting(5, 3): 0.9, ValleySetting(5, 6): 0.9, ValleySetting(5, 10): 0.9}
    >>> print(best(equal, [ValleySetting(3, 6)]))
    N_s 5, N_e 6, r 1.3
    """
    top = max(scores.values())
    equal = [setting for setting, score in scores.items() if score == top]

    def agreement(setting: ValleySetting) -> int:
        values = dataclasses.asdict(setting).items()
        return max(len(values & dataclasses.asdict(other).items()) for other in preferred or (ValleySetting(),))

    return max(equal, key=agreement)


def _counts(setting: ValleySetting) -> tuple[int, float, str]:
    return setting.n_converge, setting.n_tolerance, setting.semantics


# ------------------------------------------------------------ tables


def settings_table(
    rows: Sequence[TuneRow], chosen: ValleySetting | None = None, trained: Iterable[ValleySetting] = ()
) -> Table:
    """Build the table of all settings on the runs of one dataset and algorithm.

    Args:
        rows: Every setting on every run.
        chosen: The chosen setting, whose accuracy is bold.
        trained: The settings that the runs were trained with.
    """
    evaluated = any(row.validation is not None for row in rows)
    by_setting = group_by(rows, lambda row: row.setting)

    def averaged(setting: ValleySetting) -> tuple[str, ...]:
        """Return the averaged steps of all runs, and the mark."""
        return (*(row.spans for row in by_setting[setting]), _fallback_mark(by_setting[setting]))

    equal = group_by(by_setting, averaged)
    table_rows = []
    for settings in equal.values():
        members = by_setting[settings[0]]
        cells = [
            _range([row.first_step for row in members]),
            _range([row.last_step for row in members]),
            _range([row.n_averaged for row in members]),
        ]
        if evaluated:
            cells.insert(0, dataclasses.replace(_over_trials(members), best=chosen in settings))
        else:
            cells.append(_range([row.first_loss for row in members], 4))
        table_rows += [Row(f"{block}{_fallback_mark(members)}", tuple(cells)) for block in blocks(settings)]
    columns = ["First step", "Last step", "Weights"]
    columns = ["Validation, %", *columns] if evaluated else [*columns, "Loss at first step"]
    dataset, algorithm = rows[0].group
    title = f"Settings of SWAD: {dataset}, {algorithm_label(algorithm)}"
    trained = sorted(set(trained) & set(by_setting), key=str)
    n_different = len({key[:-1] for key in equal})
    notes = _notes(rows, len(by_setting), n_different, chosen, trained)
    return Table(title, tuple(columns), tuple(table_rows), tuple(notes), corner="Settings")


def blocks(settings: Sequence[ValleySetting]) -> list[str]:
    """Describe settings as the fewest lines that list values of N_s, N_e and r, all of whose combinations are meant.

    >>> blocks([ValleySetting(2, 6), ValleySetting(3, 6), ValleySetting(2, 10), ValleySetting(3, 10), ValleySetting(5)])
    ['N_s 2, 3; N_e 6, 10; r 1.3', 'N_s 5; N_e 6; r 1.3']
    """
    names = ("semantics", "n_converge", "n_tolerance", "tolerance_ratio")
    merged: list[tuple[Any, ...]] = [tuple((getattr(setting, name),) for name in names) for setting in settings]
    for position in (2, 3, 1):  # merge blocks that differ in one of the values only
        groups: dict[tuple[object, ...], list[float]] = {}
        for block in merged:
            others = (*block[:position], *block[position + 1 :])
            groups.setdefault(others, []).extend(block[position])
        merged = [(*others[:position], tuple(values), *others[position:]) for others, values in groups.items()]
    lines = []
    for (semantics,), starts, ends, ratios in merged:
        definition = "" if semantics == "paper" else f"; {semantics}"
        factors = _listed(1 + ratio for ratio in ratios)
        lines.append(f"N_s {_listed(starts)}; N_e {_listed(ends)}; r {factors}{definition}")
    return lines


def _notes(
    rows: Sequence[TuneRow],
    n_settings: int,
    n_different: int,
    chosen: ValleySetting | None,
    trained: Sequence[ValleySetting],
) -> list[str]:
    runs = {row.run for row in rows}
    evaluated = {row.run for row in rows if row.validation is not None}
    settings, ranges = counted(n_settings, "setting"), counted(n_different, "different range")
    notes = [f"{settings} on {counted(len(runs), 'run')}: {ranges} of steps."]
    if evaluated and evaluated != runs:
        notes.append(f"Accuracies are over the {len(evaluated)} of {len(runs)} runs that kept their segments.")
    if trained:
        notes.append(f"As trained: {'; '.join(map(str, trained))}.")
    if chosen is not None:
        scores = score_settings(rows)
        equal = sum(score == scores.get(chosen) for score in scores.values()) - 1
        others = f", like {counted(equal, 'other setting')}" if equal else ""
        notes.append(f"Bold: the accuracy of the chosen setting ({chosen}){others}.")
    if any(row.threshold is None for row in rows):
        notes.append("*: the loss never converged in at least one run, which averages only the end of training.")
    return notes


def chosen_table(
    rows: Sequence[TuneRow],
    chosen: Mapping[tuple[str, str], ValleySetting],
    trained: Sequence[TuneRow] = (),
) -> Table:
    """Build the table of the chosen settings, with their accuracy on the target, next to the averages as trained."""
    table_rows = []
    for group, setting in chosen.items():
        dataset, algorithm = group
        name = f"{dataset}, {algorithm_label(algorithm)}"
        for label, members in (
            ("chosen", [row for row in rows if row.group == group and row.setting == setting]),
            ("as trained", [row for row in trained if row.group == group]),
        ):
            if members:
                shown = {str(row.setting) for row in members}
                text = shown.pop() if len(shown) == 1 else f"{len(shown)} settings"
                cells = (
                    Cell(text=text),
                    _over_trials(members),
                    _over_trials(members, lambda row: row.target_in),
                )
                table_rows.append(Row(f"{name}: {label}", cells))
    return Table("Chosen settings", ("Setting", "Validation, %", "Target, %"), tuple(table_rows), corner="Runs")


def rows_csv(rows: Iterable[TuneRow]) -> str:
    """Return the rows as comma-separated values in full precision, one line per setting and run."""
    setting_fields = [field.name for field in dataclasses.fields(ValleySetting)]
    fields = [field.name for field in dataclasses.fields(TuneRow) if field.name != "setting"]
    lines = [[*fields[:5], *setting_fields, *fields[5:]]]
    for row in rows:
        values = [getattr(row, name) for name in fields]
        lines.append([*values[:5], *(getattr(row.setting, name) for name in setting_fields), *values[5:]])
    return csv_text(lines)


def _over_trials(
    rows: Iterable[TuneRow], value: Callable[[TuneRow], float | None] = lambda row: row.validation
) -> Cell:
    """Show the mean over the runs of each trial, then over trials, in percent."""
    trials: dict[int, list[float]] = {}
    for row in rows:
        if (accuracy := value(row)) is not None:
            trials.setdefault(row.trial, []).append(accuracy)
    return percent_cell(map(mean, trials.values()), decimals=2)


def _range(values: Sequence[float], decimals: int = 0) -> Cell:
    """Show the value of one run, or the lowest and the highest of several."""
    low, high = min(values), max(values)
    if low == high:
        return Cell(low, decimals=decimals)
    return Cell(text=f"{low:,.{decimals}f}–{high:,.{decimals}f}")


def _fallback_mark(rows: Iterable[TuneRow]) -> str:
    return "*" if any(row.threshold is None for row in rows) else ""


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values))
