"""Imported runs against the numbers that DomainBed's own code makes of the same files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.domainbed_sweep import write_auto_lr, write_published, write_sweep
from swad.testbed.data import benchmarks
from swad.testbed.results import domainbed
from swad.testbed.results.accuracy_table import accuracy_tables
from swad.testbed.results.comparisons import default_baseline
from swad.testbed.results.records import RecordError
from swad.testbed.results.runs import RunList, find_runs
from swad.testbed.results.selection import SelectionError, collect_results, select

GOLDEN = json.loads((Path(__file__).parent / "domainbed_golden.json").read_text())
METHODS = ("iid", "lodo", "oracle")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> RunList:
    return find_runs(write_sweep(tmp_path_factory.mktemp("domainbed")))


def selected(runs: RunList, method: str) -> list[list[object]]:
    rows = []
    for dataset, algorithm in {(run.dataset, run.algorithm) for run in runs}:
        members = [run for run in runs if (run.dataset, run.algorithm) == (dataset, algorithm)]
        for number, target in enumerate(domainbed.DOMAINS[dataset]):
            try:
                results = select(members, method, targets=[target]).itertuples()
            except SelectionError:
                continue
            name = algorithm.removesuffix(" (DomainBed)")
            rows += [[dataset, name, result.trial, number, result.value] for result in results]
    return sorted(rows)


@pytest.mark.parametrize("method", METHODS)
def test_every_selection_is_that_of_domainbed(sweep, method):
    assert selected(sweep, method) == GOLDEN["accuracies"][method]


@pytest.mark.parametrize("method", METHODS)
def test_our_own_rule_among_equals_would_select_otherwise(sweep, method, monkeypatch):
    """The files have ties in which the rules differ; otherwise the test above would show little."""
    monkeypatch.setattr(domainbed, "seed_of", lambda config: None)
    assert selected(sweep, method) != GOLDEN["accuracies"][method]


@pytest.mark.parametrize("method", METHODS)
def test_tables_print_the_numbers_of_collect_results(sweep, method):
    tables = {table.title: table for table in accuracy_tables(sweep, method, paper="none")}
    for dataset, by_algorithm in GOLDEN["printed"][method].items():
        if dataset == "Averages":
            continue
        table = tables[dataset]
        for algorithm, (*printed, average) in by_algorithm.items():
            row = next(row for row in table.rows if row.name == f"{algorithm} (DomainBed, selected step)")
            cells = dict(zip(table.columns, row.cells, strict=True))
            for target, text in zip(domainbed.DOMAINS[dataset], printed, strict=True):
                cell = cells[target]
                # A single trial has no error in our tables, and 0.0 in theirs.
                error = cell.error or 0.0
                assert (f"{cell.value:.1f} +/- {error:.1f}" if cell.value is not None else "X") == text
            mean = cells["Avg."].value
            assert ("X" if mean is None else f"{mean:.1f}") == average


def test_erm_plus_plus_is_selected_as_with_auto_lr(tmp_path):
    runs = find_runs(write_auto_lr(tmp_path))
    results = select(runs, "iid", domainbed.FULL_DATA).itertuples()
    numbers = {name: number for number, name in enumerate(domainbed.DOMAINS["PACS"])}
    assert sorted([r.trial, numbers[r.target], r.value] for r in results) == GOLDEN["auto_lr"]


def test_a_run_keeps_its_settings_and_every_accuracy(sweep):
    run = next(run for run in sweep if run.path.joinpath("done").exists() and len(run.targets) == 2)
    lines = [json.loads(line) for line in (run.path / "results.jsonl").read_text().splitlines()]
    args = lines[0]["args"]
    names = domainbed.DOMAINS[run.dataset]
    assert run.targets == tuple(names[env] for env in args["test_envs"])
    assert (run.trial, run.config["seed"], run.finished) == (args["trial_seed"], args["seed"], True)
    assert run.hyperparameters == {"hparams_seed": args["hparams_seed"], **lines[0]["hparams"]}
    records = {(r.step, r.domain, r.split): r.value for r in run.frame.itertuples() if r.metric == "accuracy"}
    assert records == {
        (line["step"] + 1, name, split): line[f"env{number}_{split}_acc"]
        for line in lines
        for number, name in enumerate(names)
        for split in ("in", "out")
    }


def test_domains_have_our_names():
    for dataset, names in domainbed.DOMAINS.items():
        assert names == benchmarks.get(dataset).domains


def test_the_published_code_writes_all_targets_into_one_file(tmp_path):
    write_published(tmp_path / "train_output" / "PACS" / "231115_12-00-00_my_run")
    runs = find_runs(tmp_path)
    assert sorted(run.targets[0] for run in runs) == sorted(domainbed.DOMAINS["PACS"])
    assert len({run.path for run in runs}) == 4
    lines = [json.loads(line) for line in next(tmp_path.rglob("results.jsonl")).read_text().splitlines()]
    for number, name in enumerate(domainbed.DOMAINS["PACS"]):
        own = [line for line in lines if line["args"]["real_test_envs"] == [number]]
        (best,) = select(runs, "iid", targets=[name]).value
        assert best == max(own, key=lambda line: line["train_out"])["test_in"]
        (last,) = select(runs, "oracle", targets=[name]).value
        assert last == own[-1]["test_in"]
    assert {r.value for r in runs[0].frame.itertuples() if r.metric == "valley_loss"} == {0.5}
    assert runs[0].algorithm == "ERM (published code)"
    for line in lines:  # a script that calls its trainer sets no list of all targets
        del line["args"]["test_envs"]
    own_script = tmp_path / "own_script"
    own_script.mkdir()
    (own_script / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [run.targets for run in find_runs(own_script)] == [run.targets for run in runs]


def test_bad_files_are_named_and_lose_nothing_else(tmp_path):
    write_auto_lr(tmp_path / "good")
    good = len(find_runs(tmp_path))
    line = json.loads((tmp_path / "good" / "0-0-0" / "results.jsonl").read_text().splitlines()[0])
    bad = {
        "torn": '{"args": {"dataset": "PACS"\n',
        "empty": "",
        "array": "[1, 2]\n",
        "no-args": '{"step": 0, "env0_in_acc": 0.5}\n',
        "no-target": json.dumps({**line, "args": {**line["args"], "test_envs": []}}) + "\n",
        "text-target": json.dumps({**line, "args": {**line["args"], "test_envs": ["photo"]}}) + "\n",
        "no-accuracy": json.dumps({"args": line["args"], "step": 0}) + "\n",
        "percent": json.dumps({**line, "env0_in_acc": 85.5}) + "\n",
        "no-step": json.dumps({key: value for key, value in line.items() if key != "step"}) + "\n",
        "text": json.dumps({**line, "env0_in_acc": "high"}) + "\n",
        "null": json.dumps({**line, "env0_in_acc": None}) + "\n",
        "nan": json.dumps({**line, "env0_in_acc": float("nan")}) + "\n",
        "many-domains": json.dumps({**line, "env99999999999_in_acc": 0.5}) + "\n",
        "far-target": json.dumps({**line, "args": {**line["args"], "test_envs": [10**12]}}) + "\n",
        "step": json.dumps({**line, "step": 0.5}) + "\n",
        "trial": json.dumps({**line, "args": {**line["args"], "trial_seed": -1}}) + "\n",
        "dataset": json.dumps({**line, "args": {**line["args"], "dataset": "PA\nCS"}}) + "\n",
        "algorithm": json.dumps({**line, "args": {**line["args"], "algorithm": None}}) + "\n",
        "args": json.dumps({**line, "args": [1]}) + "\n",
        "hparams": json.dumps({**line, "hparams": "lr"}) + "\n",
    }
    for name, text in bad.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text(text)
    runs = find_runs(tmp_path, warn=False)
    assert len(runs) == good
    assert {entry.name for entry in runs.skipped} == set(bad)
    assert all("\n" not in entry.reason and "results.jsonl" in entry.reason for entry in runs.skipped)


LINE = {
    "args": {"algorithm": "ERM", "dataset": "PACS", "test_envs": [0], "trial_seed": 0, "hparams_seed": 0},
    "hparams": {"lr": 0.1},
    "step": 0,
    "loss": 1.0,
    "env0_in_acc": 0.5,
    "env1_out_acc": 0.5,
}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(["test_envs"]), inner),
    max_leaves=5,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("holdout_fraction", float("inf"))
@given(st.sampled_from([*LINE, *LINE["args"], "holdout_fraction", "real_test_envs", "tr_outloss"]), values)
def test_any_value_is_read_or_named(tmp_path, key, value):
    line = {**LINE, "args": {**LINE["args"], key: value}} if key not in LINE else {**LINE, key: value}
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(LINE) + "\n")
    try:
        runs = find_runs(tmp_path, warn=False)
    except RecordError as error:
        assert "\n" not in str(error)
    else:
        accuracy_tables(runs)


def test_a_torn_last_line_is_ignored(tmp_path):
    write_auto_lr(tmp_path)
    path = tmp_path / "0-0-0" / "results.jsonl"
    before = find_runs(path.parent)[0]
    path.write_text(path.read_text() + '{"args": {"dataset": "PACS"')
    assert find_runs(path.parent)[0].frame.equals(before.frame)


def test_their_runs_stand_next_to_ours(sweep, runs):
    """Our runs report their best weights; theirs keep rows of their own, and the paper's compare with both."""
    (pacs,) = (table for table in accuracy_tables(RunList([*sweep, *runs])) if table.title == "PACS")
    names = [row.name for row in pacs.rows]
    assert {"ERM (best)", "SWAD", "ERM (DomainBed, selected step)", "CORAL (DomainBed, selected step)"} <= set(names)
    assert any(row.name.startswith("CORAL") and row.group == "paper" for row in pacs.rows)


def test_their_erm_is_the_baseline_where_ours_is_missing(sweep, runs):
    theirs = "ERM (DomainBed, selected step)"
    results = collect_results(sweep)
    assert default_baseline(results) == theirs
    assert all(each.methods[0] == theirs for each in results)
    rows = results[0].results
    without = dataclasses.replace(results[0], results=rows[rows.method != theirs])
    assert default_baseline([without, *results[1:]]) == theirs
    assert default_baseline(collect_results(RunList([*sweep, *runs]))) == "ERM (best)"


def test_a_run_without_the_file_done_is_unfinished(sweep):
    assert {run.finished for run in sweep} == {True, False}
    assert all(run.finished == (run.path / "done").exists() for run in sweep)
