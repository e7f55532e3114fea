"""Stored rows as a frame, and the report of any measurement from it."""

from __future__ import annotations

import json
import math

import pytest

from helpers.configs import stored
from swad.testbed.measurements.calibration import Calibration
from swad.testbed.measurements.corruption import Corruption
from swad.testbed.results.measured import COLUMNS, measured
from swad.testbed.results.measured_report import report
from swad.testbed.results.measurement_rows import ROBUSTNESS, RowFile
from swad.testbed.results.records import RecordError
from swad.testbed.results.runs import load_run

pytest.importorskip("matplotlib")

CASES = (("none", 0), ("fog", 1), ("fog", 5))


def write_run(root, target="paper", trial=0, errors=None, settings=None, cases=CASES, **config):
    """Write a run with errors by weights; corruption adds 0.1 for each severity."""
    folder = root / f"{target}-{trial}-{config.get('algorithm', 'erm')}"
    folder.mkdir(parents=True)
    config = {"dataset": "digits", "target": target, "trial": trial, "algorithm": "erm", **config}
    (folder / "config.json").write_text(json.dumps(stored(config)))
    (folder / "done.json").write_text("{}")
    with RowFile(folder, ROBUSTNESS) as file:
        key = file.add_settings(settings or {"images": 10, "seed": 0, "version": 3})
        for weights, error in (errors or {"best": 0.2, "swad": 0.1}).items():
            for corruption, severity in cases:
                row = {"corruption": corruption, "severity": severity, "error": error + 0.1 * severity, "n": 10}
                row |= {"weights": weights, "fingerprint": weights, "domain": target, "side": "unseen"}
                file.append({"key": key, "kind": "error", **row})
        names = list(errors or ("best", "swad"))
        file.mark_shown(key, weights=names, fingerprints=names)
    return load_run(folder)


def add_row(run, **changes):
    """Store the last row again with other values."""
    with RowFile(run.path, ROBUSTNESS) as file:
        file.append({**[row for row in file.rows if row["kind"] == "error"][-1], **changes})


def trials(root, n=3, targets=("paper", "board")):
    return [
        write_run(root, target, trial, {"best": 0.3 + 0.01 * trial**2, "swad": 0.2 + 0.02 * trial})
        for target in targets
        for trial in range(n)
    ]


def test_the_frame_has_a_row_for_each_value(tmp_path):
    values = measured([write_run(tmp_path)], Corruption)
    assert tuple(values.columns) == COLUMNS
    first = values.iloc[0]
    assert list(first[["dataset", "weights", "target", "trial", "side"]]) == ["digits", "best", "paper", 0, "unseen"]
    of_swad = values[values["method"] == "SWAD"].set_index("quantity")["value"].to_dict()
    expected = {"Clean": 0.1, "Corrupted": 0.4, "Added": 0.3, "weather": 0.4, 0: 0.1, 1: 0.2, 5: 0.6}
    assert of_swad == pytest.approx(expected)
    assert measured([write_run(tmp_path / "b")], Calibration).empty


def test_means_are_over_targets_then_trials_and_tests_are_paired_by_trial(tmp_path):
    shown = report(measured(trials(tmp_path), Corruption), Corruption)
    table, tests = shown.tables
    swad = next(row for row in table.rows if row.name == "SWAD").cells[0]
    assert swad.value == pytest.approx(22.0)
    assert swad.error == pytest.approx(100 * (0.02**2 * 2 / 3 / 3) ** 0.5)  # the standard error, population deviation
    assert tests.title == "Compared with ERM (best): digits, unseen"
    assert tests.columns == ("Points", "95 % interval", "p", "Corrected p", "n")
    assert [row.name for row in tests.rows] == ["SWAD, Clean", "SWAD, Corrupted"]
    assert tests.rows[0].cells[0].value == pytest.approx(100 * (-0.1 - 0.09 - 0.1) / 3)
    frame = shown.tests
    assert list(frame["corrected_p"]) == pytest.approx([2 * p for p in frame["p"]])  # Holm, two equal tests
    assert frame["n_trials"].tolist() == [3, 3]


def test_one_trial_claims_nothing(tmp_path):
    shown = report(measured(trials(tmp_path, 1), Corruption), Corruption)
    assert all(cell.error is None for row in shown.tables[0].rows for cell in row.cells)
    assert "nothing" not in shown.tables[1].notes[1]
    assert "no difference is claimed" in shown.tables[1].notes[1]
    assert shown.differences["low"].isna().all()


def test_only_cases_that_all_have_count(tmp_path):
    runs = [write_run(tmp_path, trial=0), write_run(tmp_path, trial=1, cases=CASES[:2])]
    values = measured(runs, Corruption)
    assert {*values["quantity"]} == {"Clean", "Corrupted", "Added", "weather", 0, 1}
    assert json.loads(values["settings"].iloc[0])["severities"] == [1]


def test_other_settings_get_a_table_of_their_own(tmp_path):
    runs = [write_run(tmp_path, trial=0), write_run(tmp_path, trial=1, settings={"images": 3, "seed": 0, "version": 3})]
    titles = [table.title for table in report(measured(runs, Corruption), Corruption).tables]
    assert titles[::2] == [
        "Corruption error, %: digits, unseen, images 10",
        "Corruption error, %: digits, unseen, images 3",
    ]


@pytest.mark.parametrize(("version", "is_dark"), [(None, True), (2, True), (3, False)])
def test_the_earlier_frost_is_named(tmp_path, version, is_dark):
    settings = {"images": 10, "seed": 0} | ({} if version is None else {"version": version})
    run = write_run(tmp_path, settings=settings, cases=(("none", 0), ("frost", 1)))
    table = report(measured([run], Corruption), Corruption).tables[0]
    assert ("which was darker" in table.notes[0]) == is_dark


def test_erm_and_what_was_named_first_come_first(tmp_path):
    runs = [
        write_run(tmp_path, algorithm="coral", errors={"last": 0.5}),
        write_run(tmp_path, errors={"swad": 0.1, "best": 0.2}),
    ]
    assert list(dict.fromkeys(measured(runs, Corruption)["method"])) == ["SWAD", "ERM (best)", "CORAL (last)"]
    assert {*measured(runs, Corruption, ["swad"])["method"]} == {"SWAD"}


def test_a_number_that_is_not_finite_is_kept_and_not_averaged(tmp_path):
    run = write_run(tmp_path)
    add_row(run, error="inf")
    values = measured([run], Corruption)
    assert math.inf in list(values["value"])
    table = report(values, Corruption).tables[0]
    assert next(row for row in table.rows if row.name == "SWAD").cells[1].printed == "–"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"error": "a lot"}, "error: Expected `float`, got `str`"),
        ({"severity": 1.5}, "severity: Expected `int`, got `float`"),
        ({"side": None}, "side: Expected `str`, got `null`"),
        ({"domain": ["paper"]}, "domain: Expected `str`, got `array`"),
    ],
)
def test_a_damaged_row_is_one_line_with_file_and_number(tmp_path, change, reason):
    run = write_run(tmp_path)
    add_row(run, **change)
    with pytest.raises(RecordError) as caught:
        measured([run], Corruption)
    text = str(caught.value)
    assert f"robustness.jsonl, line 9 is damaged ({reason}" in text
    assert "measure again" in text
    assert "\n" not in text


def test_files_hold_every_number(tmp_path):
    shown = report(measured(trials(tmp_path / "runs"), Corruption), Corruption)
    written = shown.write(tmp_path / "out", ["svg"])
    names = ["corruption.csv", "corruption-means.csv", "corruption-tests.csv", "corruption.json", "corruption.md"]
    assert [path.name for path in written] == [*names, "corruption.svg"]
    content = json.loads((tmp_path / "out/corruption.json").read_text())
    assert [table["title"] for table in content["tables"]] == [table.title for table in shown.tables]
    assert len(content["means"]) == len(shown.means)
    drawn = (tmp_path / "out/corruption.svg").read_text()
    assert "severity (0: clean)" in drawn
    assert "difference from" in drawn


def test_a_column_by_target(tmp_path):
    values = measured(trials(tmp_path), Corruption)
    assert report(values, Corruption, "Clean").tables[0].columns == ("board", "paper", "mean")
    with pytest.raises(ValueError, match="--by-target must be one of Clean, Corrupted, Added, weather, got 'fog'"):
        report(values, Corruption, "fog")
