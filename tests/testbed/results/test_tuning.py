"""The choice among settings of SWAD, and how settings are printed."""

from __future__ import annotations

import csv
import io
import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swad.testbed.results.tuning import (
    TuneRow,
    ValleySetting,
    best,
    blocks,
    choose,
    chosen_table,
    rows_csv,
    score_settings,
    settings_table,
)

GRID = [ValleySetting(*values) for values in itertools.product((1, 3, 5), (3, 6), (0.2, 0.3), ("paper", "text"))]


def row(setting: ValleySetting, validation: float | None = None, run: str = "a", **fields) -> TuneRow:
    made = TuneRow(run, "PACS", "erm", "photo", 0, setting, f"{setting.n_converge}-9", 1, 9, 9, 0.5, 0.65, validation)
    return replace(made, **fields)


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
    rows = [row(first, 0.9), row(first, 0.1, "b"), row(second, 0.6), row(second, 0.6, "b")]
    assert score_settings(rows) == {first: 0.5, second: 0.6}
    assert choose(rows) == {("PACS", "erm"): second}
    assert best({first: 0.5, second: 0.5}) == first
    assert best({first: 0.5, second: 0.5}, [second]) == second


def test_a_setting_that_lacks_a_run_cannot_win():
    first, second = ValleySetting(1), ValleySetting(2)
    rows = [row(first, 0.5), row(first, 0.5, "b"), row(second, 0.9), row(second, None, "b")]
    assert choose(rows) == {("PACS", "erm"): first}


def test_counts_come_from_one_dataset_and_r_from_each():
    rows = [
        row(ValleySetting(3, 6, 0.2), 0.5),
        row(ValleySetting(3, 6, 0.3), 0.7),
        row(ValleySetting(5, 6, 0.2), 0.6),
        row(ValleySetting(3, 6, 0.2), 0.6, dataset="VLCS"),
        row(ValleySetting(3, 6, 0.3), 0.5, dataset="VLCS"),
        row(ValleySetting(5, 6, 0.2), 0.9, dataset="VLCS"),
    ]
    assert choose(rows)["VLCS", "erm"] == ValleySetting(5, 6, 0.2)
    assert choose(rows, counts_from="PACS") == {
        ("PACS", "erm"): ValleySetting(3, 6, 0.3),
        ("VLCS", "erm"): ValleySetting(3, 6, 0.2),
    }
    with pytest.raises(ValueError, match="cannot be chosen on DomainNet: the evaluated runs are on PACS, VLCS"):
        choose(rows, counts_from="DomainNet")


def test_equal_averages_share_a_line_and_fallbacks_are_marked():
    rows = [row(ValleySetting(1, 3), 0.5), row(ValleySetting(1, 6), 0.5), row(ValleySetting(3), 0.6, threshold=None)]
    rows.append(row(ValleySetting(5), 0.6, spans=rows[-1].spans))
    table = settings_table(rows, ValleySetting(3), [ValleySetting(3)])
    names = ["N_s 1; N_e 3, 6; r 1.3", "N_s 3; N_e 6; r 1.3*", "N_s 5; N_e 6; r 1.3"]
    assert [line.name for line in table.rows] == names
    assert [line.cells[0].best for line in table.rows] == [False, True, False]
    assert [line.cells[0].value for line in table.rows] == [50, 60, 60]
    assert table.notes[0] == "4 settings on 1 run: 2 different ranges of steps."
    assert any("never converged" in note for note in table.notes)
    bare = settings_table([row(ValleySetting(1)), row(ValleySetting(1), run="b", first_step=4, first_loss=0.25)])
    assert bare.columns == ("First step", "Last step", "Weights", "Loss at first step")
    assert [cell.printed for cell in bare.rows[0].cells] == ["1–4", "9", "9", "0.2500–0.5000"]


def test_the_chosen_setting_stands_next_to_the_trained_one():
    rows = [row(ValleySetting(1), 0.9, target_in=0.8), row(ValleySetting(3), 0.7)]
    table = chosen_table(rows, {("PACS", "erm"): ValleySetting(1)}, [row(ValleySetting(3), 0.7, target_in=0.6)])
    assert [[cell.printed for cell in line.cells] for line in table.rows] == [
        ["N_s 1, N_e 6, r 1.3", "90.00", "80.00"],
        ["N_s 3, N_e 6, r 1.3", "70.00", "60.00"],
    ]


def test_rows_are_written_in_full():
    rows = [row(ValleySetting(3, 6, 0.1 + 0.2, "text"), 1 / 3)]
    (line,) = csv.DictReader(io.StringIO(rows_csv(rows)))
    assert (line["semantics"], float(line["tolerance_ratio"]), float(line["validation"])) == ("text", 0.1 + 0.2, 1 / 3)
    assert line["target_in"] == ""
