"""`swad report`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import synthetic_runs
from helpers.accuracies import selected as selected_rows
from helpers.commands import QUICK
from helpers.run_tree import write_run
from swad.cli import _console
from swad.cli import report as report_command
from swad.testbed.results.figures import training
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import select

pytestmark = pytest.mark.slow  # needs the demo


@pytest.mark.parametrize(
    ("form", "sign"), [("markdown", "| SWAD"), ("latex", r"\toprule"), ("csv", "SWAD,"), ("text", "Averaged range")]
)
def test_report_in_every_format(demo, here, form, sign):
    folder, _ = demo
    assert sign in here("report", folder, "--format", form, "--no-page").stdout


@pytest.mark.parametrize("average", ["swad", "best"])
def test_figures_show_the_selected_run_of_a_sweep(tmp_path, monkeypatch, average):
    folder = tmp_path / "runs"
    for lr in (1e-5, 3e-5, 5e-5):
        write_run(folder / f"lr-{lr}", lr=lr)
    if average == "best":  # without an average that has a range, the selection of the live weights counts
        for path in folder.glob("*/records.jsonl"):
            path.write_text("".join(line for line in path.open() if '"swad"' not in line))
    (selected,) = selected_rows(find_runs(folder), weights=average)
    selected.run.path.rename(folder / "z")  # the last run
    drawn = []

    draw = training.valley_figure

    def valley_figure(runs, *arguments):
        drawn.extend(run.path.name for run in runs)
        return draw(runs[:1])

    monkeypatch.setattr(training, "valley_figure", valley_figure)
    report_command.report(folder, tmp_path / "page.html", figures=tmp_path, figure_formats=["svg"])
    assert drawn == ["z"]


def test_an_unwritable_page_is_a_one_line_error(here, tmp_path):
    (tmp_path / "file").touch()
    write_run(tmp_path / "runs" / "one")
    errors = here("report", tmp_path / "runs", "-o", tmp_path / "file" / "page.html", code=1).stderr
    assert f"cannot use {tmp_path / 'file' / 'page.html'} (a part of the path is a file): choose another path" in errors


def test_oracle_best_step_needs_target_evaluations(here, tmp_path, demo):
    folder, _ = demo
    once = here("report", folder, "--select", "oracle_best_step", "-o", tmp_path / "page.html").stdout
    assert "No step can be selected" in once
    here("train", "digits", "-t", "paper", *QUICK, "-o", tmp_path, "--target-every-evaluation")
    text = here("report", tmp_path, "--select", "oracle_best_step").stdout
    assert "ERM (selected step)" in text
    assert "No step can be selected" not in text
    assert "ERM (selected step)" not in here("report", tmp_path).stdout


@pytest.fixture(scope="module")
def two_datasets(tmp_path_factory):
    """Two trials of two targets on each of two datasets."""
    root = tmp_path_factory.mktemp("two")
    for dataset in ("first", "second"):
        for target in ("a", "b"):
            for trial in (0, 1):
                folder = root / dataset / f"{target}-{trial}"
                write_run(folder, dataset=dataset, domains=("a", "b"), target=target, trial=trial)
    return root


def test_report_compares_methods_with_a_baseline(here, two_datasets, tmp_path):
    options = ("report", two_datasets, "-o", tmp_path / "page.html")
    figures = ("--figures", tmp_path / "figures", "--figure-formats", "svg,png")
    text = here(*options, "--comparisons", tmp_path / "c.csv", *figures).stdout
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"critical-difference.svg", "critical-difference.png"} < drawn
    assert {Path(name).suffix for name in drawn} == {".svg", ".png"}
    assert "Comparisons with ERM (best): first" in text
    assert "Comparisons with ERM (best): all held-out domains" in text
    page = (tmp_path / "page.html").read_text()
    assert 'id="comparisons-table"' in page
    assert "Average rank of 5 methods on 2 datasets" in page
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * 4
    against_swa = here(*options, "--baseline", "swa", "--compare-over", "targets", "--format", "markdown").stdout
    assert "### Comparisons with SWA: second" in against_swa
    assert "2 targets, t" in against_swa
    assert "Comparisons with SWA" in (tmp_path / "page.html").read_text()
    as_csv = here("report", two_datasets, "--no-page", "--baseline", "swa", "--format", "csv")
    assert "Comparisons" not in as_csv.stdout
    assert "--comparisons FILE writes the comparisons" in as_csv.stderr


def test_ranks_that_cannot_be_drawn_are_explained(here, tmp_path):
    write_run(tmp_path / "runs" / "photo-0")
    figures = ("--figures", tmp_path / "figures", "--figure-formats", "svg,png")
    printed = here("report", tmp_path / "runs", "--no-page", *figures)
    assert f"wrote 2 files in {tmp_path / 'figures'}" in printed.stdout
    assert "No ranks of methods were drawn: they need three methods or more" in printed.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--baseline", "SWADD"], "a baseline must be one of the methods ERM (best), ERM (last), EMA, SWA, SWAD"),
        (["--compare-over", "seeds"], "--compare-over must be one of auto, runs, trials, targets, got 'seeds'"),
    ],
)
def test_wrong_comparisons_are_one_line_errors(here, two_datasets, options, words):
    errors = here("report", two_datasets, *options, code=1).stderr
    assert words in errors
    assert len(errors.splitlines()) == 1


@pytest.fixture
def incomplete(tmp_path):
    """Three targets; the finished run of one of them has lost its records."""
    domains = ("[red]a[/]", "b", "c")
    for target in domains:
        write_run(tmp_path / "runs" / target[-1], dataset="mine", domains=domains, target=target)
    (tmp_path / "runs" / "c" / "records.jsonl").write_text("")
    return tmp_path / "runs"


def test_one_trial_has_no_comparisons_unless_a_baseline_is_given(here, incomplete):
    assert "Comparisons" not in here("report", incomplete).stdout
    text = here("report", incomplete, "--baseline", "SWA").stdout
    assert "Comparisons with SWA" in text
    assert "One trial shows no spread between trainings" in text
    assert "On mine, the comparisons lack the target c, which has no results." in text


def test_report_names_missing_runs_and_shows_a_marked_mean_on_request(here, incomplete):
    text = here("report", incomplete).stdout
    assert "Not in the table: c: the run is finished, but its records.jsonl is empty" in text
    assert "No mean over targets, because c has no result as target" in text
    assert "[red]a[/], trial 0" in text
    assert "Selected runs: mine" in text
    assert "No mean over targets" in (incomplete / "report.html").read_text()
    allowed = here("report", incomplete, "--allow-missing-targets").stdout
    assert "* The mean over targets lacks c" in allowed
    assert "The mean over targets lacks c" in (incomplete / "report.html").read_text()
    assert "Not in the table: c" in here("report", incomplete, "--format", "csv").stderr


def test_report_does_not_replace_a_pipe(here, incomplete, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    errors = here("report", incomplete, "-o", tmp_path / "pipe", code=1).stderr
    assert "must be a regular file or a new one" in errors
    assert (tmp_path / "pipe").is_fifo()


def test_report_of_a_search_without_a_page(here, tmp_path, monkeypatch):
    """Sixty runs: four targets, three trials, five draws. The ranges are those of selected runs."""
    synthetic_runs.write_runs(tmp_path, 60, datasets=["PACS"], algorithms=["erm"])
    text = here("report", tmp_path, "--no-page").stdout
    assert "wrote" not in text
    assert not (tmp_path / "report.html").exists()
    ranges = text[text.index("\nAveraged range") :]
    runs = find_runs(tmp_path)
    selected = {run for average in ("best", "last", "ema", "swa", "swad") for run in select(runs, weights=average).run}
    assert ranges.count(", trial ") == len(selected) < 48
    monkeypatch.setattr(_console, "MAX_ROWS", 5)
    assert "more rows; the page shows all runs" in here("report", tmp_path, "--no-page").stdout
    errors = here("report", tmp_path, "--no-page", "-o", tmp_path / "page.html", code=1).stderr
    assert "--no-page writes none" in errors


def test_the_report_shows_what_is_wrong_with_pictures_of_it(demo, here, tmp_path):
    folder, _ = demo
    output = here(
        "report", folder, "-o", tmp_path / "page.html", "--figures", tmp_path, "--figure-formats", "svg"
    ).stdout
    assert "Classes: digits, SWAD" in output
    assert "Worst group: " in output
    assert (tmp_path / "confusion-digits.svg").exists()
    page = (tmp_path / "page.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == 60
    here("report", folder, "-o", tmp_path / "page.html", "--no-pictures")
    assert "<img" not in (tmp_path / "page.html").read_text()


def test_a_metric_that_was_not_recorded_is_one_line(demo, here):
    folder, _ = demo
    assert (
        "no run has recorded auc: train with --metrics auc" in here("report", folder, "--metric", "auc", code=1).stderr
    )
    assert "--select-by must be one of accuracy" in here("report", folder, "--select-by", "roc", code=1).stderr
