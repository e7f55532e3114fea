"""The choice among settings of SWAD, and how settings are printed."""

from __future__ import annotations

import itertools
import json
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swad.testbed.measurements.tune import Tune
from swad.testbed.results.measured import COLUMNS
from swad.testbed.results.measured_report import report
from swad.testbed.results.tuning import ORACLE, ValleySetting, best, blocks, choose, score_settings

GRID = [ValleySetting(*values) for values in itertools.product((1, 3, 5), (3, 6), (0.2, 0.3), ("paper", "text"))]
NAMES = {"validation": "Validation, %", "target": "Target, %", "out": "target out"}


def row(setting: ValleySetting, trial: int = 0, dataset: str = "PACS", steps=(1, 9), trained=False, **accuracies):
    """Return the rows of `measured` of one setting in one run; keywords are accuracies, and options of the choice."""
    options = {name: accuracies.pop(name) for name in ("select",) if name in accuracies}
    seen = {NAMES["validation"]: accuracies.pop("validation")} if accuracies.get("validation") is not None else {}
    accuracies.pop("validation", None)
    converged = accuracies.pop("converged", 1)
    both = {"First step": steps[0], "Last step": steps[1], "Weights": steps[1], "converged": converged}
    sides = {"seen": seen | both | {"trained": trained}}
    if accuracies:
        sides["unseen"] = {NAMES[name]: value for name, value in accuracies.items()} | both | {"trained": trained}
    settings = json.dumps({"images": None, **options})
    return [
        (dataset, "erm", setting.name, "photo", trial, side, quantity, value, setting.name, settings)
        for side, quantities in sides.items()
        for quantity, value in quantities.items()
    ]


def frame(*rows) -> pd.DataFrame:
    return pd.DataFrame([line for each in rows for line in each], columns=list(COLUMNS))


def chosen(*rows) -> dict[str, ValleySetting]:
    return {dataset: setting for (dataset, _), setting in choose(frame(*rows)).items()}


@given(st.lists(st.sampled_from(GRID), min_size=1, unique=True))
def test_blocks_name_exactly_the_settings(settings):
    named = []
    for block in blocks(settings):
        starts, ends, ratios = (
            [float(value) for value in re.search(rf"{name} ([\d., ]+)", block)[1].split(",")]
            for name in ("N_s", "N_e", "r")
        )
        semantics = "text" if block.endswith("; text") else "paper"
        for start, end, r in itertools.product(starts, ends, ratios):
            named.append((start, end, round(r - 1, 9), semantics))
    wanted = [(s.n_converge, s.n_tolerance, s.tolerance_ratio, s.semantics) for s in settings]
    assert sorted(named) == sorted(wanted)


def test_the_highest_mean_over_runs_is_chosen():
    first, second = ValleySetting(1), ValleySetting(2)
    rows = [row(first, validation=90), row(first, 1, validation=10), *(row(second, n, validation=60) for n in (0, 1))]
    assert score_settings(frame(*rows)) == {first: 50, second: 60}
    assert chosen(*rows) == {"PACS": second}
    assert best({first: 0.5, second: 0.5}) == first
    assert best({first: 0.5, second: 0.5}, [second]) == second


def test_a_setting_that_lacks_a_run_cannot_win():
    first, second = ValleySetting(1), ValleySetting(2)
    rows = [row(first, validation=50), row(first, 1, validation=50), row(second, validation=90), row(second, 1)]
    assert chosen(*rows) == {"PACS": first}


def test_runs_without_a_target_are_a_group_of_their_own():
    first, second = ValleySetting(1), ValleySetting(2)
    rows = [row(first, validation=50), row(second, validation=40)]
    rows += [
        row(first, dataset="PACS, no target", validation=60),
        row(second, dataset="PACS, no target", validation=90),
    ]
    assert chosen(*rows) == {"PACS": first, "PACS, no target": second}


accuracies = st.lists(st.sampled_from([20.0, 40.0, 60.0]), min_size=24, max_size=24)


@given(accuracies, accuracies)
def test_only_the_oracle_sees_the_target(validation, target):
    settings = GRID[::3]
    places = [(name, setting) for name in ("A", "B", "C") for setting in settings]

    def choice(select, **columns):
        rows = [
            row(
                setting,
                dataset=name,
                select=select,
                **{key: column[i] for key, column in columns.items()},
            )
            for i, (name, setting) in enumerate(places)
        ]
        return chosen(*rows)

    alone = choice("iid", validation=validation)
    assert choice("iid", validation=validation, target=target, out=target) == alone
    assert choice("oracle", validation=validation, out=target) == choice("iid", validation=target)


def test_equal_averages_share_a_line_and_fallbacks_are_marked():
    rows = [
        row(ValleySetting(1, 3), validation=50),
        row(ValleySetting(1, 6), validation=50),
        row(ValleySetting(3), validation=60, converged=0, trained=True, target=55),
        row(ValleySetting(5), validation=60, steps=(2, 9)),
    ]
    tables = report(frame(*rows), Tune).tables
    own = str(ValleySetting(3))
    lines = ["N_s 1; N_e 3, 6; r 1.3", "N_s 3; N_e 6; r 1.3* (chosen)", "N_s 5; N_e 6; r 1.3"]
    assert [line.name for line in tables[0].rows] == [f"as trained: {own}", f"chosen: {own}", *lines]
    assert [line.cells[0].value for line in tables[0].rows] == [60, 60, 50, 60, 60]
    assert tables[0].columns == ("Validation, %", "First step", "Last step", "Weights")


def test_the_chosen_setting_is_compared_with_the_trained_one_on_the_target():
    def rows(select):
        for trial in range(6):
            noise = trial / 10
            options = {"select": select, "trial": trial}
            yield row(ValleySetting(3), validation=70, target=60, out=60, trained=True, **options)
            yield row(ValleySetting(1), validation=90, target=63 + noise, out=63, **options)

    shown = report(frame(*rows("iid")), Tune)
    (test,) = shown.tests.itertuples()
    assert (test.method, test.baseline) == ("chosen: N_s 1, N_e 6, r 1.3", "as trained: N_s 3, N_e 6, r 1.3")
    assert (test.side, test.quantity, test.n) == ("unseen", "Target, %", 6)
    assert test.difference == pytest.approx(3.25)
    oracle = report(frame(*rows("oracle")), Tune)
    assert ORACLE in set(oracle.means["method"])
    assert ORACLE not in set(oracle.tests["method"]), "it was chosen by the accuracy shown"


@pytest.mark.parametrize("select", ["iid", "oracle"])
def test_a_panel_shows_each_r_and_definition_and_marks_the_choice(select):
    pytest.importorskip("matplotlib")
    rows = [row(s, validation=k, out=k, target=k, trained=k == 2, select=select) for k, s in enumerate(GRID)]
    figure = report(frame(*rows[:-1]), Tune).figure("PACS")
    panels = [axes for axes in figure.axes if axes.get_title()]
    titles = ["r = 1.2, paper", "r = 1.3, paper", "r = 1.2, text", "r = 1.3, text"]
    assert [axes.get_title() for axes in panels] == titles
    best_place, own_place = ((1, 2), 1), ((0, 0), 1)  # N_s 5, N_e 6, r 1.3, as the last of the grid is left out
    marks = {
        c.get_label(): (tuple(c.get_offsets()[0]), number)
        for number, axes in enumerate(panels)
        for c in axes.collections
    }
    assert marks == {"chosen": best_place, "as trained": own_place}
