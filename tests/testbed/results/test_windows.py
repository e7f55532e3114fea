"""Windows of made-up accuracies: the choices, their paired differences, and what is drawn."""

from __future__ import annotations

import math
import statistics
from itertools import combinations_with_replacement

import pandas as pd
import pytest

from swad.testbed.measurements.windows import Windows
from swad.testbed.results.compare import is_clear
from swad.testbed.results.measured import COLUMNS
from swad.testbed.results.measured_report import report
from swad.testbed.results.windows import BEST, nearest_window

SEGMENTS = tuple((100 * k + 1, 100 * (k + 1)) for k in range(5))


def made_up(targets=("photo", "art"), trials=(0, 1, 2), start=200, end=400, side="unseen") -> pd.DataFrame:
    """The later a window starts, the better; windows that end early are worse; SWAD has 80 %."""
    lines = []
    for target in targets:
        for trial in trials:
            found = {("swad", "SWAD"): (80.0, start, end), ("last", "ERM (last)"): (75.0,)}
            for (b, (first, _)), (e, (_, last)) in combinations_with_replacement(enumerate(SEGMENTS), 2):
                value = 70 + 2 * b + e + (0.0, 0.1, 0.5)[trial] * (b + 1)
                found[f"{first}-{last}", f"{first}-{last}"] = (value, first, last)
            for (weights, method), numbers in found.items():
                place = ("PACS", "erm", weights, target, trial, side)
                for quantity, value in zip(("Accuracy, %", "First step", "Last step"), numbers, strict=False):
                    lines.append((*place, quantity, value, method, '{"images": 50}'))
    return pd.DataFrame(lines, columns=list(COLUMNS))


@pytest.mark.parametrize(
    ("start", "end", "own"),
    [
        (200, 400, (201, 400)),
        (201, 400, (201, 400)),
        (1, 500, (1, 500)),
        (500, 500, (401, 500)),
        (140, 360, (101, 400)),
        (400, 401, (401, 500)),
    ],
)
def test_the_window_nearest_to_the_average(start, end, own):
    windows = [(first, last) for (first, _), (_, last) in combinations_with_replacement(SEGMENTS, 2)]
    assert nearest_window((start, end), windows) == own


def test_choices_and_their_paired_differences():
    shown = report(made_up(), Windows)
    steps = {
        (mean.method, mean.quantity): mean.mean for mean in shown.means.itertuples() if mean.quantity != "Accuracy, %"
    }
    methods = [method for method, quantity in steps if quantity == "First step" and steps[method, quantity] > 0]
    assert {method: (steps[method, "First step"], steps[method, "Last step"]) for method in methods} == {
        "SWAD": (200, 400),
        "SWAD's window, whole segments": (201, 400),
        "SWAD's start to the last step": (201, 500),
        "first step to SWAD's end": (1, 400),
        "all steps": (1, 500),
        "last 20 % (SWA)": (401, 500),
        "last segment": (401, 500),
        "best on the target (oracle)": (401, 500),
    }
    tests = {test.method: test for test in shown.tests.itertuples()}
    differences = [70 + 4 + noise - 80 for noise in (0.0, 0.1, 0.5)] * 2
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(6)
    all_steps = tests["all steps"]
    assert all_steps.difference == pytest.approx(mean)
    assert all_steps.low == pytest.approx(mean - 2.570582 * error)  # t of 5 degrees of freedom
    assert all_steps.value == pytest.approx(74.2)
    assert tests["live weights, last step"].difference == pytest.approx(-5)
    assert BEST["unseen"] not in tests, "it was chosen by what would be tested"
    assert all_steps.n_comparisons == 7
    assert "paired by target and trial" in shown.tables[1].notes[0]


def test_all_windows_are_corrected_together_and_counted():
    shown = report(made_up(), Windows)
    tests = list(shown.differences.itertuples())
    assert len(tests) == 15
    worse, alone = sum(map(is_clear, tests)), [test.difference > 0 for test in tests if test.p <= 0.05]
    assert 0 < worse < len(alone)
    text = shown.tables[0].notes[0]
    better = sum(is_clear(test) and test.difference > 0 for test in tests)
    assert f"Of 15 windows, {better} are shown to be better than SWAD and {worse - better} to be worse" in text
    assert f"Without correction it is {sum(alone)} and {len(alone) - sum(alone)}," in text
    assert "Westfall and Young instead of Holm" in text
    few = report(made_up(("photo",)), Windows)
    assert "corrected by Holm, since the runs are too few" in few.tables[0].notes[0]
    one = report(made_up(("photo",), (0,)), Windows)
    assert not any("windows, " in note for note in one.tables[0].notes)
    assert one.tests["p"].isna().all()


def test_the_figure_marks_every_run_and_outlines_what_is_shown(tmp_path):
    pytest.importorskip("matplotlib")
    shown = report(made_up(), Windows)
    axes = shown.figure("PACS").axes[0]
    values = axes.images[0].get_array()
    difference = {test.method: test.difference for test in shown.differences.itertuples()}
    assert values[3][1] == pytest.approx(difference["101-400"])
    assert values.mask[1][3], "a window cannot end before it starts"
    marks = {marks.get_label(): marks.get_offsets() for marks in axes.collections}
    assert len(marks["SWAD of a run"]) == 6
    assert marks["SWAD, median"].tolist() == [[pytest.approx(1.99), 3.0]]
    assert any("(corrected)" in line.get_label() for line in axes.lines)
    names = [path.name for path in shown.write(tmp_path, ["svg"])]
    assert names == [
        "windows.csv",
        "windows-means.csv",
        "windows-tests.csv",
        "windows.json",
        "windows.md",
        "windows.svg",
    ]
    assert len(pd.read_csv(tmp_path / "windows.csv").query("quantity == 'Accuracy, %'")) == 6 * 17
