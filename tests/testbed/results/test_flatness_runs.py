import dataclasses
import math

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from helpers.measured_runs import ACCURACY, changed, raw_run, write_measured_run
from helpers.pages import build_page
from swad.flatness import Comparison
from swad.testbed.results.flatness_runs import (
    curves_by_target,
    difference_curves,
    paired_differences,
    rank_methods,
    read_flatness,
)
from swad.testbed.results.flatness_stats import FlatnessCurve, average_curves, mean_over_targets
from swad.testbed.results.flatness_summary import by_dataset, ranking_notes
from swad.testbed.results.measurement_rows import FLATNESS, RowFile
from swad.testbed.results.records import Record, RecordWriter
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run


def test_curves_are_read_averaged_over_trials_and_over_targets(measured_runs, tmp_path):
    second = write_measured_run(tmp_path / "c", trial=1, factor=2.0)
    found = [one for run in (*measured_runs, second) if (one := read_flatness(run)) is not None]
    groups = curves_by_target(found)
    assert list(groups) == ["art", "photo"]
    methods = [curve.method for curve in groups["photo"]["seen"]]
    assert methods == ["ERM (best)", "SWA", "SWAD"]
    swad = groups["photo"]["seen"][-1]
    assert swad.mean == pytest.approx([0, 1.5 * 25, 1.5 * 100])  # of factors 1 and 2
    # Over two trials: t with 1 degree of freedom times the standard error of 100 and 200.
    assert swad.n_trials == 2
    assert swad.at(10.0)[1:] == pytest.approx((150 - 12.7062 * 50, 150 + 12.7062 * 50))
    # Beside it the measurement: intervals of -1 and +2. Without raw rows they may share all draws, or none.
    assert swad.measured[-1] == pytest.approx((1 + 2) / 2)
    assert swad.exact_measured == ()
    whole = mean_over_targets(groups)["unseen"][-1]
    assert whole.mean[-1] == pytest.approx((2 * 150 + 2 * 300) / 2)
    # The other target has one trial, so the mean is of these weights.
    assert whole.n_trials == 1
    assert whole.high[-1] - whole.mean[-1] <= 2


def test_values_of_two_settings_are_not_averaged(measured_runs):
    first, second = (flatness for run in measured_runs if (flatness := read_flatness(run)) is not None)
    other = dataclasses.replace(second, settings={**second.settings, "key": "other", "split": "validation"})
    again = dataclasses.replace(second, settings={**second.settings, "key": "other", "mixed_groups": 2})
    assert by_dataset([first, other, again]) == {"PACS": [first, again], "PACS, setting 2": [other]}


def test_the_last_measurement_counts_and_some_weights_can_be_chosen(tmp_path):
    run = write_measured_run(tmp_path / "a")
    with RowFile(run.path, FLATNESS) as file:
        key = file.add_settings({"radii": [7.0], "images": 99})
        row = {"key": key, "kind": "row", "weights": "swa", "domain": "seen", "radius": 7.0, "mean": "inf"}
        file.append({**row, "low": "nan", "high": "nan", "n_directions": 2})
        assert read_flatness(run).settings["images"] == 10  # until it is marked as shown
        file.mark_shown(key)
    found = read_flatness(run)
    assert found is not None
    assert found.settings["images"] == 99
    assert found.curves["seen"][0].mean == (math.inf,)
    with RowFile(run.path, FLATNESS) as file:
        file.append({**row, "weights": "ema", "low": "nan", "high": "nan", "n_directions": 6})
    assert [read_flatness(run, names).n_directions for names in (["ema"], ["swa"], [])] == [6, 2, 2]
    assert read_flatness(run, ["swad"]) is None
    assert read_flatness(RunData(tmp_path, {}, (), True)) is None


def test_worst_case_and_curvature_stand_with_the_loss_alone(tmp_path):
    run = write_measured_run(tmp_path / "a")
    with RowFile(run.path, FLATNESS) as file:
        key = file.add_settings({"radii": [7.0], "measure": "error"})
        row = {"kind": "row", "weights": "swa", "domain": "seen", "radius": 7.0, "mean": 0.1, "low": 0.0, "high": 0.2}
        file.append({"key": key, **row, "n_directions": 2})
        file.mark_shown(key)
        for kind in ("worst_case", "curvature"):
            further = file.add_settings({kind: True})
            file.append({"key": further, "kind": kind, "weights": "swa", "domain": "seen"})
            file.mark_shown(further)
    shown = {measure: read_flatness(run, measure=measure) for measure in ("loss", "error")}
    assert {name: (len(each.worst_case), len(each.curvature)) for name, each in shown.items()} == {
        "loss": (1, 1),
        "error": (0, 0),
    }


def test_methods_are_ranked_over_targets(measured_runs):
    found = [one for run in measured_runs if (one := read_flatness(run)) is not None]
    order = rank_methods(found, "unseen", 10.0)
    assert order is not None
    assert [row.method for row in order.rows] == ["SWAD", "SWA", "ERM (best)"]
    assert order.same_order
    assert order.kendall.value == pytest.approx(1)
    assert order.kendall.p == pytest.approx(2 / 6)
    assert order.resampled == "units"
    assert rank_methods(found, "unseen", 11.0) is None
    *_, note = ranking_notes(found)
    assert note.startswith("Does a lower F at radius 10 on unseen domains go with a higher accuracy on the target?")
    assert "(+1: the flattest is the most accurate, and so on): Spearman +1.00 (" in note
    assert rank_methods([read_flatness(run, ["swad", "swa"]) for run in measured_runs], "seen", 10.0) is None


def test_the_weights_named_first_are_the_reference(tmp_path):
    run = write_measured_run(tmp_path / "a")
    assert read_flatness(run).reference == "best"  # the first that was measured
    with RowFile(run.path, FLATNESS) as file:
        key = file.rows[0]["key"]
        turned = {"kind": "difference", "first": "best", "second": "swad", "domain": "seen", "radius": 5.0}
        file.append({"key": key, **turned, "mean": 50.0, "low": 40.0, "high": 60.0, "p": 0.01})
        for first in ("swad", "best", "swad"):
            file.mark_shown(key, first=first)
            found = read_flatness(run)
            assert found.reference == first
            assert {one.reference for one in found.differences} == {found.methods[first]}
            assert {one.reference for some in paired_differences([found]).values() for one in some} == {
                found.methods[first]
            }
        length = len(file.rows)
        file.mark_shown(key, first="swad")
        assert len(file.rows) == length
    assert read_flatness(run, ["swa", "best"]).reference == "swa"


def test_methods_of_two_runs_are_paired_as_if_they_were_measured_together(tmp_path):
    erm, plain = raw_run(tmp_path / "erm", "erm", 2.0)
    sam, other = raw_run(tmp_path / "sam", "sam", 1.0)
    (pairs,) = paired_differences([read_flatness(run) for run in (sam, erm)]).values()
    assert {one.reference for one in pairs} == {"ERM (best)"}
    found = {(one.curve.method, one.side): one for one in pairs}
    assert {name for name, _ in found} == {"SWAD", "SAM (best)", "SAM + SWAD"}
    # The twin: both models compared as if they had been measured together.
    together = Comparison({"SAM": other["best"], "ERM": plain["best"]}).differences("SAM", "ERM")
    for side in ("seen", "unseen"):
        curve = found["SAM (best)", side].curve
        rows = [row for row in together if row.domain == side]
        assert curve.mean == pytest.approx([row.mean for row in rows])
        halves = [(high - low) / 2 for low, high in zip(curve.low, curve.high, strict=True)]
        assert halves[-1] > 0.01
        assert halves == pytest.approx([(row.high - row.low) / 2 for row in rows], rel=0.1)
    # Differences within a run and across runs have p-values of the same kind.
    assert all(difference.p[-1] < 0.05 for difference in pairs)
    text = build_page([erm, sam])
    for name in ("SWAD", "SAM (best)", "SAM + SWAD"):
        assert f"photo, for these weights only: {name} against ERM (best)" in text
    elsewhere, _ = raw_run(tmp_path / "seed", "sam", 1.0, seed=1)
    (pairs,) = paired_differences([read_flatness(run) for run in (erm, elsewhere)]).values()
    assert {one.curve.method for one in pairs} == {"SWAD"}  # runs with other directions cannot be paired


def test_what_is_not_finite_is_not_ranked(tmp_path):
    run = write_measured_run(tmp_path / "a")
    with RecordWriter(run.path) as writer:
        writer.append(Record("r", 100, "photo", "in", "accuracy", 0.7, "ema"))
    with RowFile(run.path, FLATNESS) as file:
        file.append(*({**row, "weights": "ema"} for row in list(file.rows) if row.get("weights") == "swad"))
    run = changed(load_run(run.path), "ema", mean="inf", low="nan", high="nan")
    order = rank_methods([read_flatness(run)], "unseen", 10.0)
    assert [row.method for row in order.rows] == ["SWAD", "SWA", "ERM (best)"]
    assert order.resampled == "methods"
    assert order.interval_over == "which excludes nothing, with 3 methods"
    changed(run, "swad", mean="nan")
    assert rank_methods([read_flatness(run)], "unseen", 10.0) is None
    assert "Flatness on PACS" in build_page([run])
    up, down = (FlatnessCurve("A", (1.0,), (sign * math.inf,), (0.0,), (0.0,)) for sign in (1, -1))
    assert math.isnan(average_curves([up, down]).mean[0])


def test_copies_of_a_method_are_ranked_once(tmp_path):
    run = write_measured_run(tmp_path / "a")
    with RecordWriter(run.path) as writer:
        for name, value in (("last", 0.5), ("ema", ACCURACY["best"])):
            writer.append(Record("r", 100, "photo", "in", "accuracy", value, name))
    with RowFile(run.path, FLATNESS) as file:
        for name, steep in (("last", 9.0), ("ema", 1.0)):
            some = [row for row in list(file.rows) if row.get("weights") == "best"]
            file.append(*({**row, "weights": name, "mean": steep * row["mean"]} for row in some))
    order = rank_methods([read_flatness(load_run(run.path))], "unseen", 10.0)
    # EMA has the numbers of ERM (best), and ERM (last) is not another method.
    assert [row.method for row in order.rows] == ["SWAD", "SWA", "ERM (best)"]


def test_differences_as_curves_are_averaged_over_trials_then_over_targets(measured_runs):
    photo, art = (list(read_flatness(run).differences) for run in measured_runs)
    steeper = [dataclasses.replace(one, curve=dataclasses.replace(one.curve, mean=(0, -70, -400))) for one in photo]
    reference, found = difference_curves({("photo", 0): photo, ("photo", 1): steeper, ("art", 0): art})
    assert reference == "ERM (best)"
    assert list(found) == ["mean over targets", "photo", "art"]
    (swad,) = found["photo"]["seen"]
    assert swad.method == "SWAD"
    assert swad.mean == pytest.approx([0, (-50 - 70) / 2, (-200 - 400) / 2])
    assert found["mean over targets"]["unseen"][0].mean == pytest.approx([0, (-60 - 50) / 2, (-300 - 200) / 2])
    assert list(difference_curves({("art", 0): art})[1]) == ["art"]
    assert difference_curves({}) == ("", {})
