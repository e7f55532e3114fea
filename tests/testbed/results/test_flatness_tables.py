import dataclasses

import pytest

from helpers.measured_runs import write_measured_run
from swad.testbed.results.flatness_runs import difference_curves, paired_differences, read_flatness
from swad.testbed.results.flatness_stats import Difference, FlatnessCurve
from swad.testbed.results.flatness_tables import domain_table, verdict_table


def test_every_domain_has_its_own_numbers(measured_runs):
    table = domain_table([read_flatness(run) for run in measured_runs])
    assert table.columns == ("art", "cartoon", "photo")
    assert table.rows[2].name == "photo, trial 0: SWAD"
    assert [cell.value for cell in table.rows[2].cells] == [100, 100, 200]
    assert table.rows[2].cells[0].error == 1.5


def test_verdicts_in_words(measured_runs):
    table = verdict_table("Who", paired_differences([read_flatness(run) for run in measured_runs]))
    assert [row.name for row in table.rows] == [
        "photo, for these weights only: SWAD against ERM (best)",
        "art, for these weights only: SWAD against ERM (best)",
        "mean over targets, for these weights only: SWAD against ERM (best)",
    ]
    assert table.rows[0].cells[0].text == "flatter at every radius (p = 0.01)"
    assert table.rows[2].cells[1].text == "flatter at every radius"
    below = FlatnessCurve("A", (0.0, 1.0, 2.0), (0, -2, -2), (0, -3, -3), (0, -1, -1))
    weakest = Difference("seen", below, "B", (1.0, 0.03, 0.001))  # radius 0 does not count
    assert weakest.verdict == "flatter at every radius (p = 0.03)"
    flat = FlatnessCurve("A", (1.0, 2.0, 3.0, 4.0), (0,) * 4, (-1, -1, -1, -1), (1, 1, 1, 1))
    assert Difference("seen", flat, "B").verdict == "no difference shown"
    mixed = FlatnessCurve("A", (1.0, 2.0, 3.0, 4.0), (0,) * 4, (-2, -2, 1, -2), (-1, -1, 2, -1))
    assert Difference("seen", mixed, "B").verdict == "flatter at 1–2, 4, sharper at 3"


def test_trials_of_one_target_are_no_targets(tmp_path):
    photo = [write_measured_run(tmp_path / f"{trial}", trial=trial) for trial in (0, 1)]
    names = [
        row.name.split(":")[0]
        for row in verdict_table("Who", paired_differences([read_flatness(run) for run in photo])).rows
    ]
    assert names == ["photo, over 2 trials"]
    # A third run, of another target, counts as much as the two trials together.
    art = write_measured_run(tmp_path / "art", target="art")
    units = paired_differences([read_flatness(run) for run in (*photo, art)])
    units["art", 0] = [
        dataclasses.replace(one, curve=dataclasses.replace(one.curve, mean=(0, 5, 5), low=(0, 4, 4), high=(0, 30, 130)))
        for one in units["art", 0]
    ]
    *_, last = verdict_table("Who", units).rows
    assert last.name == "mean over targets, for these weights only: SWAD against ERM (best)"
    reference, curves = difference_curves(units)
    assert reference == "ERM (best)"
    assert curves["mean over targets"]["seen"][0].mean == pytest.approx([0, (-50 + 5) / 2, (-200 + 5) / 2])
