from __future__ import annotations

import shutil
import sys

import pytest

from helpers.runs import short

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    from swad.testbed.training.loop import train

    root = tmp_path_factory.mktemp("runs")
    for trial in (0, 1):
        train(short(root / f"paper-{trial}", keep_segments=True, trial=trial, averages=("swad",)))
    return root


def test_windows_prints_choices_and_writes_rows_and_a_heat_map(here, runs, tmp_path):
    options = ("--images", "10", "-o", tmp_path, "--figure-formats", "png")
    out = here("windows", runs, "--every", "2", *options).stdout
    assert "Windows of digits, ERM: accuracy on the target" in out
    assert "Windows of digits, ERM: accuracy on source validation" in out
    assert "best on validation (fit-on-val)" in out
    assert "Of 6 windows," in out
    assert f"rows in {runs / 'paper-0' / 'windows.jsonl'} and 1 more" in out
    assert f"wrote {tmp_path / 'windows.csv'}\n" in out
    assert (tmp_path / "digits-erm.png").stat().st_size > 10_000
    for path in runs.glob("paper-*"):
        shutil.rmtree(path / "segments")
        shutil.rmtree(path / "weights")
    assert here("windows", runs, *options).stdout == out, "records alone are enough"
    assert here("windows", runs, "--stored", *options[2:]).stdout == out
    assert "leave out --images" in here("windows", runs, "--stored", "--images", "5", code=1).stderr


def test_windows_names_bad_values(here, runs, tiny_run):
    def error(*options):
        return here("windows", *options, code=1).stderr

    assert "--evaluate-on must be one of target, validation, both, got 'test'" in error(runs, "--evaluate-on", "test")
    assert "--every must be 1 or more, got 0" in error(runs, "--every", "0")
    assert "no windows.jsonl has a complete measurement: run `swad windows` first" in error(tiny_run, "--stored")
    assert "skipped: it kept no segments (train with --keep-segments)" in error(tiny_run)


def test_windows_reports_missing_matplotlib_before_it_measures(here, runs, monkeypatch, tmp_path):
    copied = shutil.copytree(runs, tmp_path / "runs", ignore=shutil.ignore_patterns("windows.jsonl"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = here("windows", copied, code=1).stderr
    assert error == "error: figures need matplotlib: pip install 'swad[report]'\n"
    assert not list(copied.rglob("windows.jsonl"))
