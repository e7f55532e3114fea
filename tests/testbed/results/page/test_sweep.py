"""The data of a sweep's explorer: what the page holds, and what it must not hold."""

import base64
import dataclasses
import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

import synthetic_runs

pytest.importorskip("jinja2")

from helpers.accuracies import selected as select_rows
from helpers.pages import build_page
from swad.testbed.results.accuracy_table import accuracy_table
from swad.testbed.results.page import sweep
from swad.testbed.results.page.sweep import build_sweep, is_sweep
from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.selection import collect_results
from swad.testbed.results.training_curves import source_curves


@pytest.fixture(scope="module")
def searched() -> list[RunData]:
    """Two datasets, two algorithms, two trials, three draws."""
    configs = synthetic_runs.configs(96, datasets=["PACS", "VLCS"], algorithms=["erm", "coral"], trials=2)
    return [synthetic_runs.run_in_memory(name, config) for name, config in configs]


def explorer(runs: list[RunData], method: str = "iid") -> sweep.Sweep:
    results = collect_results(runs, method)
    return build_sweep(runs, results, [accuracy_table(each) for each in results])


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def data_of(runs: list[RunData], method: str = "iid") -> Any:
    return json.loads(unpacked(explorer(runs, method).data))


def test_small_pages_have_no_explorer(runs: list[RunData], searched: list[RunData]) -> None:
    assert not is_sweep(runs)
    assert is_sweep(searched)
    assert is_sweep([searched[0], searched[48]])  # two draws of one target and trial
    assert "sweep-data" not in build_page(runs[:1])


def test_the_overview_shows_the_means_of_the_datasets_tables(searched: list[RunData]) -> None:
    table = explorer(searched).table
    assert table.columns == ("PACS", "VLCS", "Avg.")
    for column, results in enumerate(collect_results(searched)):
        expected = {row.name: row.cells[4].printed for row in accuracy_table(results).rows if row.group == "ours"}
        assert {row.name: row.cells[column].printed for row in table.rows} == expected
    for row in table.rows:
        assert row.cells[2].value == pytest.approx((row.cells[0].value + row.cells[1].value) / 2)


def test_a_method_without_a_dataset_has_no_mean_over_datasets(searched: list[RunData]) -> None:
    runs = [run for run in searched if run.algorithm == "erm" or run.dataset == "PACS"]
    rows = {row.name: row.cells for row in explorer(runs).table.rows}
    assert rows["CORAL + SWAD"][0].value is not None
    assert rows["CORAL + SWAD"][1].value is rows["CORAL + SWAD"][2].value is None
    assert rows["SWAD"][2].value is not None


def test_results_name_the_selected_runs(searched: list[RunData]) -> None:
    data = data_of(searched)
    label = [method[0] for method in data["methods"]].index("CORAL + SWAD")
    columns = data["results"]
    found = {
        (columns["target"][i], columns["trial"][i]): (columns["accuracy"][i], searched[columns["run"][i]].path)
        for i in range(len(columns["run"]))
        if columns["method"][i] == label and columns["dataset"][i] == 1
    }
    members = [run for run in searched if run.algorithm == "coral" and run.dataset == "VLCS"]
    chosen = select_rows(members, "iid", "swad")
    assert found == {(r.target, r.trial): (round(100 * r.value, 10), r.run.path) for r in chosen}


def with_other_target_values(run: RunData) -> RunData:
    records = [
        dataclasses.replace(record, value=0.123) if record.domain in run.targets else record for record in run.records
    ]
    return dataclasses.replace(run, records=records)


def test_target_values_of_runs_that_were_not_selected_are_not_in_the_page(searched: list[RunData]) -> None:
    selected = {id(searched[number]) for number in data_of(searched)["results"]["run"]}
    assert 0 < len(selected) < len(searched)
    changed = [run if id(run) in selected else with_other_target_values(run) for run in searched]
    first, second = explorer(searched), explorer(changed)
    assert (first.data, first.curves) == (second.data, second.curves)
    assert "target" not in data_of(searched)


def test_an_oracle_shows_the_target_accuracy_it_selects_by(searched: list[RunData]) -> None:
    data = data_of(searched, "oracle")
    place = data["weights"].index("swad")
    (record,) = [
        r
        for r in searched[5].records
        if r.domain in searched[5].targets and (r.metric, r.split, r.average) == ("accuracy", "out", "swad")
    ]
    assert data["target"][place][5] == round(100 * record.value, 4)


def test_an_oracle_of_the_best_step_shows_the_accuracy_of_that_step(searched: list[RunData]) -> None:
    target = searched[0].targets[0]
    steps = [
        Record("r", 100 * k, target, split, "accuracy", value)
        for k, value in enumerate((0.5, 0.75, 0.25))
        for split in ("in", "out")
    ]
    run = dataclasses.replace(searched[0], records=(*searched[0].records, *steps))
    data = data_of([run, *searched[1:]], "oracle_best_step")
    assert data["target"][data["weights"].index("selected step")][0] == 75


def test_settings_are_those_that_differ(searched: list[RunData]) -> None:
    settings = {setting["name"]: setting for setting in data_of(searched)["settings"]}
    assert set(settings) == {"lr", "seed"}
    assert settings["lr"]["searched"]
    assert not settings["seed"]["searched"]
    for number in (0, 40, 95):
        lr = settings["lr"]
        assert float(lr["values"][lr["codes"][number]]) == searched[number].hyperparameters["lr"]


def curves_of(packed: str, number: int) -> list[dict[str, dict[int, float | None]]]:
    """The curves of a run by metric and domain, unpacked as the page does."""
    content = unpacked(packed)
    (size,) = struct.unpack("<I", content[:4])
    header, levels = json.loads(content[4 : 4 + size]), memoryview(content[4 + size :]).cast("H")
    assert (4 + size) % 2 == 0
    found = []
    for is_log, low, scale, *series in header["runs"][number]:
        curves = {}
        for domain, steps, start in zip(series[::3], series[1::3], series[2::3], strict=True):
            values = levels[start : start + len(header["steps"][steps])]
            curves[header["domains"][domain]] = {
                step: None if level == 65535 else math.exp(low + scale * level) if is_log else low + scale * level
                for step, level in zip(header["steps"][steps], values, strict=True)
            }
        found.append(curves)
    return found


def test_curves_survive_packing(searched: list[RunData]) -> None:
    packed = explorer(searched).curves
    for number in (0, 50, 95):
        for (metric, scale), found in zip({"loss": 1, "accuracy": 100}.items(), curves_of(packed, number), strict=True):
            expected = source_curves([searched[number]], metric)[0]
            assert found.keys() == expected.keys()
            for domain, curve in expected.items():
                steps, values = list(curve), list(curve.values())
                assert list(found[domain]) == steps
                assert list(found[domain].values()) == pytest.approx([scale * value for value in values], abs=2e-3)


def test_long_curves_are_thinned_and_values_that_are_not_finite_are_gaps() -> None:
    config = {"dataset": "D", "algorithm": "erm", "target": "t", "trial": 0, "lr": 0.1}
    values = {1: float("nan"), 2: float("inf"), 3: float("-inf")}
    records = [Record("r", step, "s", "out", "loss", values.get(step, step / 10)) for step in range(1, 1001)]
    long = RunData(Path("a"), config, records, True)
    short = RunData(Path("b"), config | {"lr": 0.2}, records[:7], True)
    empty = RunData(Path("c"), config | {"lr": 0.3}, (), False)
    built = explorer([long, short, empty])
    assert built.thinned == 1
    curve = curves_of(built.curves, 0)[0]["s"]
    assert len(curve) == sweep.MAX_POINTS
    assert list(curve)[:1] + list(curve)[-1:] == [1, 1000]
    assert curve[1] is None
    assert curve[1000] == pytest.approx(100.0, abs=2e-3)
    gaps = list(curves_of(built.curves, 1)[0]["s"].values())
    assert gaps[:3] == [None, None, None]
    assert gaps[3:] == pytest.approx([0.4, 0.5, 0.6, 0.7], abs=1e-5)
    assert curves_of(built.curves, 2) == [{}, {}]


def test_losses_of_a_run_that_diverged_keep_their_digits() -> None:
    losses = [0.5, float("-inf"), 5e12, 2.25, float("nan")]
    records = [Record("r", step, "s", "out", "loss", loss) for step, loss in enumerate(losses)]
    diverged = RunData(Path("a"), {"dataset": "D", "target": "t"}, records, True)
    shown = list(curves_of(explorer([diverged]).curves, 0)[0]["s"].values())
    assert shown[1] is shown[4] is None
    assert [shown[0], shown[2], shown[3]] == pytest.approx([0.5, 5e12, 2.25], rel=1e-3)


def test_a_setting_is_searched_if_runs_of_one_algorithm_differ_in_it() -> None:
    config = {"dataset": "D", "target": "t", "trial": 0}
    runs = [
        RunData(Path(name), config | {"algorithm": name, "hyperparameters": {"alpha": alpha}}, (), True)
        for name, alpha in (("mixup", 0.2), ("mixstyle", 0.1))
    ]
    assert not explorer(runs).has_search
    runs.append(RunData(Path("c"), config | {"algorithm": "mixup", "hyperparameters": {"alpha": 0.4}}, (), True))
    assert explorer(runs).has_search


def test_a_large_page_has_no_row_and_no_figure_for_each_run(
    searched: list[RunData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swad.testbed.results.page.build.MAX_ROWS", 10)
    monkeypatch.setattr("swad.testbed.results.page.build.MAX_FIGURES", 10)
    text = build_page(searched)
    assert "timings-table" not in text[text.index("<body>") :]
    assert "Settings that differ" not in text[: text.index("<script")]
    assert 'class="trial"' not in text
    assert "runs took" in text  # the total time stays
    ids = re.findall(r'\bid="([^"]+)"', text[: text.index("<script")])
    assert len(ids) == len(set(ids)) > 20
