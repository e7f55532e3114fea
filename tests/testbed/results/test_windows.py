"""Windows of made-up accuracies: the choices, their paired differences, and what is drawn."""

from __future__ import annotations

import csv
import io
import math
import statistics
from pathlib import Path

import pytest

from swad.testbed.results.figures.windows import windows_figure
from swad.testbed.results.run_data import RunData
from swad.testbed.results.window_tables import choices_table, compared_windows_csv, windows_csv
from swad.testbed.results.windows import BEST, RunWindows, WindowGroup, all_windows, by_group

SEGMENTS = tuple((100 * k + 1, 100 * (k + 1)) for k in range(5))


def made_up(target="photo", trial=0, start=200, end=400, noise=0.0, **changes) -> RunWindows:
    """The later a window starts, the better; windows that end early are worse; SWAD has 0.8."""
    windows = {(b, e): 0.7 + 0.02 * b + 0.01 * e + noise * (b + 1) for b, e in all_windows(5)}
    accuracies = {"windows": {"target": windows}, "weights": {"target": {"swad": 0.8, "last": 0.75}}}
    config = {"target": target, "trial": trial, "dataset": "PACS", "algorithm": "erm"}
    config |= {name: changes.pop(name) for name in ("dataset", "algorithm") if name in changes}
    run = RunData(Path(f"{target}-{trial}"), config, (), True)
    fields = {"average": "swad", "start": start, "end": end, "segments": SEGMENTS, "images": 50}
    return RunWindows(run, **{**fields, **accuracies, **changes})


def group(**changes) -> WindowGroup:
    noises = (0.0, 0.001, 0.005)
    return WindowGroup(tuple(made_up(t, n, noise=noises[n], **changes) for t in ("photo", "art") for n in range(3)))


@pytest.mark.parametrize(
    ("start", "end", "own"),
    [
        (200, 400, (2, 3)),
        (201, 400, (2, 3)),
        (1, 500, (0, 4)),
        (500, 500, (4, 4)),
        (140, 360, (1, 3)),
        (400, 401, (4, 4)),
    ],
)
def test_the_window_nearest_to_the_average(start, end, own):
    assert made_up(start=start, end=end).own == own


def test_the_best_window_is_the_longest_then_the_earliest_of_equals():
    equal = dict.fromkeys(all_windows(5), 0.5)
    assert made_up(windows={"target": equal}).best("target") == (0, 4)
    assert made_up(windows={"target": {**equal, (1, 2): 0.6, (2, 3): 0.6, (4, 4): 0.6}}).best("target") == (1, 2)


def test_choices_and_their_paired_differences():
    runs = group()
    choices = runs.choices()
    assert {label: set(windows) for label, windows in choices.items()} == {
        "SWAD's window, whole segments": {(2, 3)},
        "SWAD's start to the last step": {(2, 4)},
        "first step to SWAD's end": {(0, 3)},
        "all steps": {(0, 4)},
        "last 20 % (SWA)": {(4, 4)},
        "last segment": {(4, 4)},
        "best on the target (oracle)": {(4, 4)},
    }
    comparisons = runs.compare_choices("target")
    all_steps = comparisons["all steps"]
    differences = [0.7 + 0.04 + noise - 0.8 for noise in (0.0, 0.001, 0.005)] * 2
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(6)
    assert all_steps.difference == pytest.approx(mean)
    assert all_steps.test.low == pytest.approx(mean - 2.570582 * error)  # t of 5 degrees of freedom
    assert all_steps.accuracy == pytest.approx(0.742)
    assert comparisons["live weights, last step"].difference == pytest.approx(-0.05)
    oracle = comparisons[BEST["target"]]
    assert oracle.difference > 0
    assert oracle.test.p is oracle.corrected_p is oracle.test.low is None
    assert not oracle.arrow
    assert all_steps.n_comparisons == 7, "the oracle is not in the family"


def test_the_table_claims_what_is_shown():
    runs = group()
    windows = runs.compare_windows("target")
    table = choices_table(runs, "target", windows)
    assert [row.name for row in table.rows][:2] == ["SWAD", "SWAD's window, whole segments"]
    assert table.rows[0].cells[0].text == "200 to 400"
    text = table.text(160)
    worse = sum(c.is_clear and c.difference < 0 for c in windows.values())
    better = sum(c.is_clear and c.difference > 0 for c in windows.values())
    assert worse > 0
    alone = [c.difference > 0 for c in windows.values() if c.test.p <= 0.05]
    assert len(alone) > better + worse
    assert f"Of 15 windows, {better} are shown to be better than SWAD and {worse} to be worse" in text
    assert f"Without correction it is {sum(alone)} and {len(alone) - sum(alone)}," in " ".join(text.split())
    assert "6 runs, at most 50 images" in text
    one = WindowGroup((made_up(),))
    text = choices_table(one, "target", one.compare_windows("target")).text(160)
    assert "One trial shows no spread" in text
    assert "↑" not in text


def test_csv_files_have_every_window():
    runs = group()
    rows = list(csv.DictReader(io.StringIO(windows_csv(runs.runs))))
    assert len(rows) == 6 * 15
    (row,) = (r for r in rows if (r["run"], r["first_step"], r["last_step"]) == ("art-0", "201", "400"))
    assert float(row["difference"]) == pytest.approx(0.7 + 0.04 + 0.03 - 0.8)
    compared = list(csv.DictReader(io.StringIO(compared_windows_csv(runs, runs.compare_windows("target")))))
    assert [row["method"] for row in compared][:2] == ["1-100", "1-200"]
    assert len(compared) == 15


def test_the_figure_marks_every_run_and_outlines_what_is_shown():
    runs = group()
    windows = runs.compare_windows("target")
    figure = windows_figure(runs, {"target": windows})
    axes = figure.axes[0]
    values = axes.images[0].get_array()
    assert values[3][1] == pytest.approx(100 * windows[1, 3].difference)
    assert values.mask[1][3], "a window cannot end before it starts"
    marks = {marks.get_label(): marks.get_offsets() for marks in axes.collections}
    assert len(marks["SWAD of a run"]) == 6
    assert marks["SWAD, median"].tolist() == [[pytest.approx(1.99), 3.0]]
    assert any("(corrected)" in line.get_label() for line in axes.lines)


def test_runs_that_cannot_be_compared_are_named():
    with pytest.raises(ValueError, match=r"PACS, ERM: .* differ in target or trial, but photo-0 and photo-0 do not"):
        by_group([made_up(), made_up()])
    for changes in ({"images": None}, {"average": "swa"}, {"segments": SEGMENTS[1:]}):
        with pytest.raises(ValueError, match=r"average and images, but those of photo-0 and photo-1 do not"):
            by_group([made_up(), made_up(trial=1, **changes)])
    with pytest.raises(ValueError, match="no side is complete"):
        by_group([made_up(), made_up(trial=1, windows={}, weights={})])
    with pytest.raises(ValueError, match=r"PACS, ERM: no trial holds out all of art, photo \(train the missing"):
        by_group([made_up("photo", 0), made_up("art", 1)])
    groups, notes = by_group([made_up(), made_up(dataset="VLCS"), made_up(algorithm="coral"), made_up("art", 1)])
    assert [each.name for each in groups] == ["VLCS, ERM", "PACS, CORAL"]  # one group ends nothing for others
    assert len(notes) == 1
    assert notes[0].startswith("not compared: PACS, ERM: no trial holds out all of art, photo")


def test_trials_that_lack_targets_change_nothing_but_a_note():
    runs = group()
    (part,), _ = by_group([*runs.runs, made_up("photo", 7, start=1, noise=9.0)])
    tables = [choices_table(each, "target", each.compare_windows("target")) for each in (runs, part)]
    assert tables[0].rows == tables[1].rows
    assert {*tables[1].notes} - {*tables[0].notes} == {"Without trial 7, which lacks targets."}


@pytest.mark.parametrize(("average", "chosen"), [("swad_text", "SWAD text and the best"), ("ema", "The best")])
def test_on_validation_only_what_was_chosen_there_has_an_advantage(average, chosen):
    windows = {"validation": dict.fromkeys(all_windows(5), 0.5)}
    runs = WindowGroup((made_up(average=average, windows=windows, weights={"validation": {average: 0.5}}),))
    note = choices_table(runs, "validation", runs.compare_windows("validation")).notes[-1]
    assert note == f"{chosen} live weights were also chosen on validation images."
