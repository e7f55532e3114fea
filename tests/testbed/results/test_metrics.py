from __future__ import annotations

from pathlib import Path

import pytest

from helpers.configs import roles
from swad.testbed.results.accuracy_table import accuracy_table
from swad.testbed.results.metrics import get_metric
from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.run_tables import selected_runs_table
from swad.testbed.results.runs import RunList
from swad.testbed.results.selection import SelectionError, choose, collect_results
from swad.testbed.results.selection_file import make_selection, read_selection, write_selection

SOURCES = {"clinic": 0.0, "lab": 0.2}


def run(name: str, lr: float, auc: float, accuracy: float, **settings: object) -> RunData:
    """A run of SWAD, best at step 100 by AUC and at step 200 by accuracy; the lab is harder by 0.2."""
    records = [
        Record(
            name,
            step,
            domain,
            "out",
            metric,
            value - hard + up * (-1 if metric == "auc" else 1) * (step - 150) / 1e3,
            average,
        )
        for domain, hard in SOURCES.items()
        for metric, value in (("auc", auc), ("accuracy", accuracy))
        for step, average, up in ((100, None, 1), (200, None, 1), (200, "best", 0), (200, "swad", 0))
    ]
    records += [
        Record(name, 200, "ward", "in", metric, value, average)
        for metric, value in (("auc", 10 * lr), ("accuracy", lr))
        for average in ("best", "swad")
    ]
    config = {"dataset": "scans", "algorithm": "erm", "target": "ward", "trial": 0, "lr": lr, **settings}
    return RunData(Path(name), config, records, finished=True, roles={**roles(config), "select_by": "output"})


RUNS = (run("a", lr=0.01, auc=0.9, accuracy=0.5), run("b", lr=0.02, auc=0.8, accuracy=0.7))


def values(**options):
    (results,) = collect_results(RunList(RUNS), **options)
    return {row.method: (row.run, row.score, row.value, row.source) for row in results.results.itertuples()}["SWAD"]


def test_one_metric_selects_and_another_one_is_reported():
    assert values() == pytest.approx((1, 0.6, 0.02, 0.6))
    assert values(select_by="auc") == pytest.approx((0, 0.8, 0.01, 0.4))
    assert values(metric="auc") == pytest.approx((1, 0.6, 0.2, 0.7))
    assert values(metric="auc", select_by="worst_domain") == pytest.approx((1, 0.5, 0.2, 0.7))
    assert values(metric="worst_domain") == pytest.approx((1, 0.6, 0.02, 0.5))


def test_a_search_chooses_by_the_metric_of_its_runs():
    assert choose(RunList(RUNS), "ward", "iid", "swad").run == 1
    assert choose(RunList(RUNS), "ward", "iid", "swad", "auc").run == 0


def test_by_default_runs_are_selected_as_they_were_trained():
    def select(*names: str) -> str:
        runs = [
            RunData(each.path, {**each.config, "select_by": name}, each.records, True)
            for each, name in zip(RUNS, names, strict=True)
        ]
        (results,) = collect_results(RunList(runs))
        return results.select_by

    assert select("auc", "auc") == "auc"
    assert select("auc", "accuracy") == "accuracy"


def test_a_table_says_what_it_shows_and_compares_with_no_accuracy_of_the_paper():
    (results,) = collect_results(RunList(RUNS), metric="auc", select_by="worst_domain")
    table = accuracy_table(results, "all")
    assert table.notes[0].startswith(
        "AUC in % on the in split (80 %) of the held-out domain, selected by source validation accuracy in the worst "
        "domain (iid)"
    )
    assert {row.name: row.cells[0].value for row in table.rows} == pytest.approx({"ERM (best)": 20.0, "SWAD": 20.0})


def test_the_step_of_the_best_weights_is_that_of_the_metric_that_chose_them():
    runs = [run("a", 0.01, 0.9, 0.5, select_by="auc"), run("b", 0.02, 0.8, 0.7)]
    for each, step in zip(runs, ("(best, step 100)", "(best)"), strict=True):
        (results,) = collect_results(RunList([each]))
        assert f"ERM {step}" in str(selected_runs_table(results).rows[0].cells[0].text)


def test_a_metric_that_no_run_recorded_is_named():
    for metric, option in (("f1", "f1"), ("accuracy:melanoma", "class_accuracy")):
        with pytest.raises(SelectionError, match=f"no run has recorded {metric}: train with --metrics {option}"):
            collect_results(RunList(RUNS), metric=metric)


def test_a_selection_file_says_by_which_metric(tmp_path):
    selection = make_selection(collect_results(RunList(RUNS), select_by="auc"), ".")
    write_selection(tmp_path / "selection.json", selection)
    assert read_selection(tmp_path / "selection.json") == selection
    assert selection.select_by == "auc"


def test_an_unknown_metric_is_an_error():
    with pytest.raises(ValueError, match=r"the metric must be one of accuracy, .*, got 'roc'"):
        get_metric("roc")
    with pytest.raises(ValueError, match="got 'accuracy:'"):
        get_metric("accuracy:")
