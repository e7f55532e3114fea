import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from helpers.tiny_runs import copied, tiny
from swad.testbed.experiments import run_flatness
from swad.testbed.measure.saved_run import open_run
from swad.testbed.results.figures.style import PALETTE
from swad.testbed.results.flatness_runs import read_flatness
from swad.testbed.results.runs import load_run
from swad.testbed.training.loop import train

pytest.importorskip("matplotlib")

QUICK = ["--directions", "4", "--images", "12", "--radii", "0:6:3"]
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_flatness_measures_prints_draws_and_lists_the_files(here: Call, tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    options = [folder, *QUICK, "--device", "cpu"]
    result = here("flatness", *options, "--weights", "best,swa,swad", "--output", tmp_path / "figures")
    for text in ("ERM (best)", "SWAD", "γ = 6", "F on seen domains", "SWAD against ERM (best)"):
        assert text in result.stdout
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names >= {"flatness.svg", "flatness.pdf", "flatness.png", "flatness-paired.png", "flatness.json"}
    assert f"wrote {tmp_path / 'figures' / 'flatness.svg'}, .pdf, .png, .json" in result.stdout.splitlines()
    assert f"rows in {folder / 'flatness.jsonl'}" in result.stdout
    summary = json.loads((tmp_path / "figures" / "flatness.json").read_text())
    assert {row["method"] for row in summary["curves"]} == {"ERM (best)", "SWA", "SWAD"}
    assert {row["domain"] for row in summary["domains"]} == {"board", "clutter", "outline", "paper", "seen", "unseen"}
    assert "F by domain at γ = 6" in result.stdout
    assert "100 %" in result.stderr  # of the progress, where there is no terminal

    again = here("flatness", *options, "--weights", "best,swa,swad", "--figure-formats", "svg")
    assert "flatness: 100 %" not in again.stderr
    worst = here("flatness", *options, "--weights", "swad", "--figure-formats", "svg", "--worst-case", "0.05")
    assert "Worst case on seen domains" in worst.stdout
    assert "the true maximum within the radius is at least this" in worst.stdout
    worst_rows = json.loads((folder / "figures" / "flatness.json").read_text())["worst_case"]
    assert [(row["method"], row["measure"]) for row in worst_rows] == [("SWAD", "loss"), ("SWAD", "error")]
    assert all(row["lower_bound"] >= row["loss"] for row in worst_rows)
    page = tmp_path / "page.html"
    here("report", folder, "--output", page)
    text = page.read_text()
    assert "Flatness on digits" in text
    assert "SWAD against ERM (best)" in text
    assert "Loss surfaces" not in text


@pytest.mark.slow
def test_only_included_parameters_are_perturbed(here: Call, tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    options = [folder, *QUICK, "--weights", "best,swad", "--figure-formats", "svg", "--device", "cpu"]
    here("flatness", *options)
    whole = json.loads((folder / "figures" / "flatness.json").read_text())
    filters = ["--include", "head.*, body.*", "--exclude", "*.bias", "--worst-case", "0.05"]
    result = here("flatness", *options, *filters)
    assert "flatness: 100 %" in result.stderr  # what was there is of all parameters
    some = json.loads((folder / "figures" / "flatness.json").read_text())
    assert some["settings"]["digits"]["include"] == ["head.*", "body.*"]
    assert some["settings"]["digits"]["exclude"] == ["*.bias"]
    assert [row["mean"] for row in some["curves"]] != [row["mean"] for row in whole["curves"]]
    heads = [json.loads(line) for line in (folder / "flatness.jsonl").read_text().splitlines()]
    moved = [row["settings"]["exclude"] for row in heads if row["kind"] == "flatness"]
    assert moved == [[], [], ["*.bias"], ["*.bias"]]
    worst_rows = [row for row in heads if row["kind"] == "settings" and "worst_radii" in row]
    assert [row["include"] for row in worst_rows] == [["head.*", "body.*"]]
    again = here("flatness", *options, *filters)
    assert "100 %" not in again.stderr
    here("report", folder, "--output", tmp_path / "page.html")
    assert "parameters: include head.*, body.*; exclude *.bias" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_split_error_and_window_are_measured_drawn_and_shown(here: Call, tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    options = [folder, *QUICK, "--weights", "best,last,swad", "--figure-formats", "svg", "--device", "cpu"]
    result = here("flatness", *options, "--error", "--source-split", "all", "--logits", "normalized")
    assert "F of the 0-1 error on unseen domains, for these weights only" in result.stdout
    assert "Paired differences of the 0-1 error" in result.stdout
    settings = "sources: training and validation images, normalized logits"
    assert settings in " ".join(result.stdout.split())
    figures = folder / "figures"
    for name in ("flatness-error.svg", "flatness-error-paired.svg"):
        figure = (figures / name).read_text()
        assert "rise of the 0-1 error" in figure
        assert settings in " ".join(re.sub("<[^>]*>", " ", figure).split())
    summary = json.loads((figures / "flatness.json").read_text())
    assert {row["method"] for row in summary["error"]["curves"]} == {"ERM (best)", "ERM (last)", "SWAD"}
    here("report", folder, "--output", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Flatness on digits: the 0-1 error" in text
    assert settings in text
    for wrong, message in (
        (["--source-split", "test"], "--source-split must be one of training, validation, all, got 'test'"),
        (["--logits", "loud"], "--logits must be one of raw, normalized, got 'loud'"),
        (["--precision", "fp16"], "--precision must be one of fp32, bf16, got 'fp16'"),
    ):
        assert message in here("flatness", *options, *wrong, code=1).stderr


@pytest.mark.slow
def test_several_runs_and_their_mean(here: Call, tiny_run, tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    copied(tiny_run, root / "paper-0")
    train(tiny(root / "board-0", target="board", averages=("swad:n_converge=2",), snapshots=()))
    names = ["--weights", "last,swad,swa", "--figure-formats", "svg"]
    result = here("flatness", root, *names, *QUICK, "--device", "cpu")
    assert "mean over targets, for these weights only: SWAD against ERM (last)" in result.stdout
    assert "(2 of 2)" in result.stderr
    text = (root / "figures" / "flatness.svg").read_text()
    assert all(f">{title}<" in text for title in ("mean over targets", "board", "paper"))
    summary = json.loads((root / "figures" / "flatness.json").read_text())
    means = {row["method"] for row in summary["curves"] if row["group"] == "mean over targets"}
    assert means == {"ERM (last)", "SWAD"}  # SWA was measured on one target alone


def test_wrong_radii_are_reported_before_anything_is_measured(here: Call, tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    result = here("flatness", folder, *QUICK, "--worst-case", "0.1,0.1", "--device", "cpu", code=1)
    assert "radii must be different numbers of 0 or more, at least one; got [0.1, 0.1]" in result.stderr
    assert not (folder / "flatness.jsonl").exists()


@pytest.mark.slow
def test_the_first_name_is_the_reference_in_table_and_page(here: Call, tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    few = [*QUICK, "--figure-formats", "svg", "--device", "cpu"]
    for first, second in (("best", "swad"), ("swad", "best"), ("best", "swad")):
        result = here("flatness", folder, "--weights", f"{first},{second}", *few)
        here("report", folder, "--output", tmp_path / "page.html")
        names = {"best": "ERM (best)", "swad": "SWAD"}
        for text in (result.stdout, (tmp_path / "page.html").read_text()):
            assert f"{names[second]} against {names[first]}" in text
            assert f"{names[first]} against {names[second]}" not in text
    here("flatness", folder, "--weights", "swad", *few)  # one alone changes nothing
    assert read_flatness(load_run(folder)).reference == "best"


@pytest.mark.slow
def test_values_that_are_not_finite_do_not_stop_table_and_page(here: Call, tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    few = ["--directions", "4", "--images", "12", "--radii", "0,3,1e25", "--figure-formats", "svg", "--device", "cpu"]
    here("flatness", folder, "--weights", "best,last,swa,swad", *few)
    summary = json.loads((folder / "figures" / "flatness.json").read_text())
    far = [row["mean"] for row in summary["curves"] if row["radius"] == 1e25]
    assert all(isinstance(value, str) for value in far)  # inf or nan
    # One mapping for all figures: the color of ERM (best), which leads, is no other's in the paired one.
    drawn = [(folder / "figures" / f"{stem}.svg").read_text() for stem in ("flatness", "flatness-paired")]
    assert [PALETTE[0] in text for text in drawn] == [True, False]
    here("report", folder, "--output", tmp_path / "page.html")
    run_flatness.run_local(
        open_run(folder), ["best", "swad"], run_flatness.FlatnessConfig((0.0, 3.0), n_directions=2, n_images=12)
    )
    here("report", folder, "--output", tmp_path / "page.html")
    assert "2 random directions" in (tmp_path / "page.html").read_text()


def test_normalized_directions_have_shares_for_radii(tiny_run):
    subject, cpu = open_run(tiny_run), torch.device("cpu")
    assert run_flatness.FlatnessConfig().settings(subject, cpu)["radii"][-1] == 24
    for kind in ("filter", "layer"):
        assert run_flatness.FlatnessConfig(normalize=kind).settings(subject, cpu)["radii"] == [
            k / 10 for k in range(11)
        ]
    assert run_flatness.FlatnessConfig((2.0,), normalize="filter").settings(subject, cpu)["radii"] == [2.0]


def test_curvature_without_its_package_fails_before_anything_is_measured(here: Call, tiny_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    folder = copied(tiny_run, tmp_path / "run")
    result = here("flatness", folder, *QUICK, "--curvature", "--device", "cpu", code=1)
    assert "pip install" in result.stderr
    assert not (folder / "flatness.jsonl").exists()


def test_ctrl_c_says_how_to_resume(here: Call, tiny_run, tmp_path, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("swad.testbed.experiments.run_flatness.compare", stop)
    result = here("flatness", copied(tiny_run, tmp_path / "run"), *QUICK, "--device", "cpu", code=130)
    text = "Interrupted. Finished measurements are saved; run the same command again for the rest."
    assert result.stderr.splitlines()[-1] == text


def test_a_warning_is_one_line_and_shown_once(here: Call, tiny_run, tmp_path):
    options = ["--directions", "4", "--images", "4", "--radii", "0,0.001", "--precision", "bf16", "--device", "cpu"]
    result = here("flatness", copied(tiny_run, tmp_path / "run"), "--weights", "swad,swad,swa", *options)
    warned = [line for line in result.stderr.splitlines() if "rounded by about" in line]
    assert warned
    assert all(line.startswith("warning: weights in bfloat16 are rounded by about") for line in warned)
    assert len(set(warned)) == len(warned)
    assert "UserWarning" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flatness", "RUN", "--weights", "swadd"], "has no weights 'swadd'; it has best, last, swad, swa"),
        (
            ["flatness", "RUN", "--radii", "a"],
            "--radii takes numbers such as 0.1,0.2, or START:STOP:STEP such as 0:60:5; got 'a'",
        ),
        (["flatness", "RUN", "--radii", "5:1:1"], "--radii takes numbers"),
        (["flatness", "RUN", "--radii", "-1"], "radii must be different numbers of 0 or more"),
        (["flatness", "RUN", "--radii", "nan"], "radii must be different numbers of 0 or more"),
        (["flatness", "RUN", "--radii", "0:inf:1"], "--radii takes numbers"),
        (["flatness", "RUN", "--directions", "2"], "a single pair has no spread; got 2"),
        (
            ["flatness", "RUN", "--directions", "5"],
            "--directions must be an even number of at least 4",
        ),
        (["flatness", "RUN", "--normalize", "cube"], "--normalize must be one of sphere, filter, layer, got 'cube'"),
        (["flatness", "RUN", "--include", "haed.*"], "the pattern 'haed.*' matches no parameter; names look like"),
        (["flatness", "RUN", "--images", "-1"], "--images must be 0 or more, got -1"),
        (["flatness", "RUN", "--workers", "-1"], "--workers must be 0 or more, got -1"),
        (["flatness", "RUN", "--figure-formats", "gif"], "--figure-formats must be one of svg, pdf, png, got 'gif'"),
        (["flatness", "RUN", "--device", "tpu9"], "device must be auto, cpu, cuda or cuda:NUMBER, got 'tpu9'"),
        (["flatness", "OPEN"], "OPEN skipped: unfinished): run `swad train` or `swad sweep` again to finish one"),
        (["flatness", "nowhere"], "nowhere is not a directory"),
    ],
)
def test_wrong_inputs_get_one_line(here: Call, tiny_run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    if "RUN" in arguments:
        copied(tiny_run, tmp_path / "RUN")
    if "OPEN" in arguments:
        (copied(tiny_run, tmp_path / "OPEN") / "done.json").unlink()
    result = here(*arguments, code=1)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
