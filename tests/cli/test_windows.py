from __future__ import annotations

import shutil

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
    out = here(
        "measure", "windows", runs, "--every", "2", "--images", "10", "-o", tmp_path, "--figure-formats", "png"
    ).stdout
    assert "windows: 2 runs, 36 evaluations, 0 stored, 36 to do" in out
    assert "Windows: digits, unseen" in out
    assert "Windows: digits, seen" in out
    assert "best on validation (fit-on-val)" in out
    assert "Of 6 windows," in out
    assert (tmp_path / "windows.png").stat().st_size > 10_000
    for path in runs.glob("paper-*"):
        shutil.rmtree(path / "segments")
        shutil.rmtree(path / "weights")
    stored = here("measure", "windows", runs, "--stored", "-o", tmp_path, "--figure-formats", "png").stdout
    assert out.endswith(stored), "records alone are enough"


def test_windows_names_bad_values(here, tiny_run):
    def error(*options):
        return here("measure", "windows", *options, code=1).stderr

    assert "--side must be one of both, unseen, seen" in error(tiny_run, "--side", "test").replace("error: ", "--", 1)
    assert "no windows.jsonl has a complete measurement" in error(tiny_run, "--stored")
    assert "it kept no segments (train with --keep-segments" in error(tiny_run)


def test_tune_prints_settings_and_writes_weights_and_a_heat_map(here, tmp_path):
    from swad.testbed.training.loop import train

    run = tmp_path / "runs" / "paper-0"
    train(short(run, keep_segments=True, averages=("swad",)))
    grid = ("--n-converge", "1,3", "--n-tolerance", "3,6,inf", "--tolerance-ratio", "0,0.3")
    options = (*grid, "-o", tmp_path, "--save", tmp_path / "weights", "--figure-formats", "png")
    out = here("measure", "tune", run, *options).stdout
    assert "Settings of SWAD: digits, seen" in out
    assert "as trained: N_s 3, N_e 6, r 1.3" in out
    assert "Compared with as trained" in out
    assert (tmp_path / "tune.png").stat().st_size > 10_000
    assert (tmp_path / "weights" / "digits" / "erm" / "paper-0.safetensors").exists()

    def error(*options):
        return here("measure", "tune", run, *options, code=1).stderr

    assert "--n-converge takes whole numbers such as 0,1,2, or START:STOP such as 0:9; got 'three'" in error(
        "--n-converge", "three"
    )
    both = error("--n-converge", "0", "--tolerance-ratio", "30")
    assert "n_converge (N_s)" in both
    assert "tolerance_ratio is relative" in both
    assert "semantics must be" in error("--semantics", "papers")
