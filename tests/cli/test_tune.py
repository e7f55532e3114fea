from __future__ import annotations

import shutil
import sys

import pytest

from helpers.runs import short

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from swad.testbed.training.loop import train

    root = tmp_path_factory.mktemp("runs")
    train(short(root / "paper-0", keep_segments=True, averages=("swad",)))
    return root / "paper-0"


def test_tune_prints_settings_and_writes_rows_weights_and_a_heat_map(here, run, tmp_path):
    out = here(
        "tune", run, "--n-converge", "1,3", "--tolerance-ratio", "0,0.3", "-o", tmp_path, "--save-weights",
        "--figure-formats", "png",
    ).stdout  # fmt: skip
    assert "Settings of SWAD: digits, ERM" in out
    assert out.count("As trained: N_s 3, N_e 6, r 1.3.") == 1
    assert "Chosen settings" in out
    assert f"rows in {run / 'tune.jsonl'}" in out
    assert f"wrote {tmp_path / 'tuning.csv'}\n" in out
    assert (tmp_path / "digits-erm.png").stat().st_size > 10_000
    assert (tmp_path / "weights" / "digits" / "erm" / "paper-0.safetensors").exists()


def test_tune_names_bad_values(here, run):
    def error(*options):
        return here("tune", run, *options, code=1).stderr

    assert "--n-converge takes whole numbers such as 0,1,2, or START:STOP such as 0:9; got 'three'" in error(
        "--n-converge", "three"
    )
    assert "--select must be one of iid, oracle, got 'best'" in error("--select", "best")
    both = error("--n-converge", "0", "--tolerance-ratio", "30")
    assert "n_converge (N_s)" in both
    assert "tolerance_ratio is relative" in both
    assert "semantics must be" in error("--semantics", "papers")


def test_tune_without_segments_says_how_to_keep_them(here, tiny_run, tmp_path):
    out = here("tune", tiny_run, "-o", tmp_path).stdout
    assert "train with --keep-segments" in out
    assert "Loss at first step" in out


def test_tune_reports_missing_matplotlib_before_it_measures(here, run, monkeypatch, tmp_path):
    copied = shutil.copytree(run, tmp_path / "runs", ignore=shutil.ignore_patterns("tune.jsonl"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = here("tune", copied, code=1).stderr
    assert error == "error: figures need matplotlib: pip install 'swad[report]'\n"
    assert not list(copied.rglob("tune.jsonl"))
