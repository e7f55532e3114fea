"""Settings of SWAD on finished runs: the choice among them, the tables of all, and their heat map.

A setting is the name of the weights that it averages, such as "3,6,0.3,paper": N_s, N_e, r - 1 and the definition.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swad.util.statistics import mean

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from swad.testbed.results.measured_report import MeasuredReport

VALIDATION, TARGET = "Validation, %", "Target, %"
FIRST, LAST, AVERAGED, FIRST_LOSS = "First step", "Last step", "Weights", "Loss at first step"
"""Quantities of tables; the target's accuracy is on its in split."""
TARGET_OUT, TRAINED, CONVERGED = "target out", "trained", "converged"
"""Quantities that decide: the accuracy by which the oracle chooses, whether the run was trained with this setting, and
whether its loss converged."""
AS_TRAINED, CHOSEN = "as trained", "chosen"
ORACLE = f"{CHOSEN} by the target (oracle)"

Group = tuple[str, str]
"""Dataset (with the algorithm) and settings of the measurement: the runs for which one setting is chosen."""


@dataclass(frozen=True)
class ValleySetting:
    """The settings of SWAD: N_s, N_e, r - 1, and which definition is followed.

    >>> print(ValleySetting(), ValleySetting(5, 10, 0.2, "text"), sep="; ")
    N_s 3, N_e 6, r 1.3; N_s 5, N_e 10, r 1.2, text
    >>> ValleySetting(5, 10, 0.2, "text").name, setting_of("5,10,0.2,text"), setting_of("swad")
    ('5,10,0.2,text', ValleySetting(n_converge=5, n_tolerance=10.0, tolerance_ratio=0.2, semantics='text'), None)
    """

    n_converge: int = 3
    n_tolerance: float = 6
    tolerance_ratio: float = 0.3
    semantics: str = "paper"

    def __str__(self) -> str:
        definition = "" if self.semantics == "paper" else f", {self.semantics}"
        return f"N_s {self.n_converge}, N_e {self.n_tolerance:g}, r {1 + self.tolerance_ratio:g}{definition}"

    @property
    def name(self) -> str:
        """The name of its average in stored rows."""
        return f"{self.n_converge},{self.n_tolerance:.0f},{float(self.tolerance_ratio)!r},{self.semantics}"


def setting_of(name: str) -> ValleySetting | None:
    """Return the setting that a name stands for; None if it is not that of a setting."""
    if re.fullmatch(r"\d+,(\d+|inf),[\d.e-]+,\w+", name) is None:
        return None
    start, end, ratio, semantics = name.split(",")
    try:
        return ValleySetting(int(start), float(end), float(ratio), semantics)
    except ValueError:
        return None


# ------------------------------------------------------------ choosing a setting


def choose(values: pd.DataFrame) -> dict[Group, ValleySetting]:
    """Choose a setting for every dataset and algorithm: the one with the highest mean accuracy over the runs.

    Among equals the setting most like one that the runs were trained with wins, then the first. How to choose is among
    the settings of the measurement: with `select` "iid" by the sources' validation accuracy alone, with "oracle" by
    that on the target's out split alone.

    Args:
        values: Rows of `measured`.
    """
    by_group = values.groupby(["dataset", "settings"], sort=False)
    scores = {group: (score_settings(rows, _decisive(group[1])), _trained(rows)) for group, rows in by_group}
    return {group: best(found, trained) for group, (found, trained) in scores.items() if found}


def _decisive(settings: str) -> str:
    """Return the quantity that chooses."""
    return TARGET_OUT if json.loads(settings).get("select") == "oracle" else VALIDATION


def score_settings(values: pd.DataFrame, quantity: str = VALIDATION) -> dict[ValleySetting, float]:
    """Return the mean accuracy of every setting over the runs on which all settings were evaluated."""
    rows = values[values["quantity"] == quantity]
    scores: dict[ValleySetting, list[float]] = {}
    for name, value in zip(rows["weights"], rows["value"], strict=True):
        if (setting := setting_of(name)) is not None:
            scores.setdefault(setting, []).append(value)
    most = max(map(len, scores.values()), default=0)
    return {setting: mean(each) for setting, each in scores.items() if len(each) == most}


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


def _trained(values: pd.DataFrame) -> list[ValleySetting]:
    names = values["weights"][(values["quantity"] == TRAINED) & (values["value"] == 1)]
    return [setting for name in dict.fromkeys(names) if (setting := setting_of(name)) is not None]


# ------------------------------------------------------------ tables and figure


def settings_shown(values: pd.DataFrame) -> pd.DataFrame:
    """Return what tables show of rows of `measured`: the setting as trained, the chosen one, and all settings.

    Settings whose averages are equal in every run stand together. Of the target, only what the choice needs is shown.
    """
    import pandas as pd

    chosen = choose(values)
    parts = [values.iloc[:0]]
    for (dataset, settings, side), rows in values.groupby(["dataset", "settings", "side"], sort=False):
        setting, is_oracle = chosen.get((dataset, settings)), _decisive(settings) == TARGET_OUT
        shown = rows[~rows["quantity"].isin([TARGET_OUT, TRAINED, CONVERGED])]
        trained = rows[(rows["quantity"] == TRAINED) & (rows["value"] == 1)]
        of_runs = set(zip(trained["target"], trained["trial"], trained["weights"], strict=True))
        is_own = [place in of_runs for place in zip(shown["target"], shown["trial"], shown["weights"], strict=True)]
        settings_of_runs = _trained(rows)
        label = f"{AS_TRAINED}: {settings_of_runs[0]}" if len(settings_of_runs) == 1 else AS_TRAINED
        parts.append(shown[is_own].assign(method=label))
        if setting is not None:
            label = ORACLE if is_oracle else f"{CHOSEN}: {setting}"
            parts.append(shown[shown["weights"] == setting.name].assign(method=label))
        if side == "seen" or is_oracle:
            for equal, label in _lines(rows):
                mark = f" ({CHOSEN})" if setting in equal else ""
                parts.append(shown[shown["weights"] == equal[0].name].assign(method=f"{label}{mark}"))
    return pd.concat(parts, ignore_index=True)


def _lines(rows: pd.DataFrame) -> Iterator[tuple[list[ValleySetting], str]]:
    """Return groups of settings whose averages are equal in every run, with the lines that name them."""
    equal: dict[tuple[Any, ...], list[ValleySetting]] = {}
    fallbacks = set(rows["weights"][(rows["quantity"] == CONVERGED) & (rows["value"] == 0)])
    of_average = rows[rows["quantity"] != TRAINED]
    for name, each in of_average.groupby("weights", sort=False):
        if (setting := setting_of(str(name))) is not None:
            columns = (each["target"], each["trial"], each["quantity"], each["value"])
            equal.setdefault(tuple(zip(*columns, strict=True)), []).append(setting)
    for settings in equal.values():
        mark = "*" if settings[0].name in fallbacks else ""
        for block in blocks(settings):
            yield settings, f"{block}{mark}"


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


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values))


def settings_figure(report: MeasuredReport, dataset: str) -> Figure | None:
    """Draw validation accuracies minus those as trained, one panel for each r and definition; mark the chosen one.

    For the oracle it is the accuracy on the target by which it chooses.
    """
    from swad.testbed.results.figures.heat_map import HeatMap, Mark, heat_map_figure

    values = report.values[report.values["dataset"] == dataset]
    settings = values["settings"].iloc[0]
    values = values[values["settings"] == settings]
    chosen = choose(report.values).get((dataset, settings))
    if chosen is None:
        return None
    quantity = _decisive(settings)
    scores = score_settings(values, quantity)
    trained = next((setting for setting in _trained(values) if setting in scores), None)
    baseline = trained or chosen
    starts, ends = (sorted({getattr(s, name) for s in scores}) for name in ("n_converge", "n_tolerance"))
    kinds = sorted({(s.semantics != "paper", s.semantics, s.tolerance_ratio) for s in scores})
    panels = []
    for _, semantics, ratio in kinds:
        cells = {
            (ends.index(s.n_tolerance), starts.index(s.n_converge)): score - scores[baseline]
            for s, score in scores.items()
            if (s.semantics, s.tolerance_ratio) == (semantics, ratio)
        }
        marks = [
            Mark(label, (ends.index(s.n_tolerance), starts.index(s.n_converge)), marker)
            for label, s, marker in ((CHOSEN, chosen, "D"), (AS_TRAINED, trained, "s"))
            if s is not None and (s.semantics, s.tolerance_ratio) == (semantics, ratio)
        ]
        definition = "" if len({name for _, name, _ in kinds}) == 1 else f", {semantics}"
        panels.append(
            HeatMap(
                f"r = {1 + ratio:g}{definition}", cells, [f"{e:g}" for e in ends], list(map(str, starts)), marks=marks
            )
        )
    of = "Validation" if quantity == VALIDATION else "Target (out)"
    label = f"{of} accuracy minus that {'as trained' if trained else 'of the chosen setting'}, points"
    return heat_map_figure(panels, title=f"{dataset}: settings of SWAD", x="$N_e$", y="$N_s$", label=label)
