"""The accuracy of every window against averages of the weights after every step, and resuming."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import short
from swad.averaging.group import AverageGroup
from swad.testbed.averages.segment_log import SegmentLog, load_segments
from swad.testbed.averages.segment_windows import SegmentWindows
from swad.testbed.experiments import run_windows, segment_runs
from swad.testbed.experiments.run_windows import WindowsConfig, measure_windows, stored_windows
from swad.testbed.experiments.tune import tune
from swad.testbed.measure.finished_runs import finished_runs
from swad.testbed.measure.saved_run import open_run, stratified_subset
from swad.testbed.results.tuning import ValleySetting
from swad.testbed.results.windows import all_windows, read_windows
from swad.testbed.training.loop import train
from swad.testbed.training.run_dir import RunError

pytest.importorskip("sklearn")

STEPS, SPANS = 24, ((1, 4), (5, 8), (9, 12), (13, 16), (17, 20), (21, 24))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two trials that kept their segments; the first also the weights after every step."""
    root = tmp_path_factory.mktemp("runs")
    for trial in (0, 1):
        options = {"snapshots": () if trial else tuple(range(1, STEPS + 1)), "hyperparameters": {"lr": 0.005}}
        train(short(root / f"paper-{trial}", keep_segments=True, trial=trial, averages=("swad",), **options))
    return root


@pytest.fixture
def fresh(runs, tmp_path) -> Path:
    """The runs with nothing measured."""
    return Path(shutil.copytree(runs, tmp_path / "runs", ignore=shutil.ignore_patterns("windows.jsonl")))


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "windows.jsonl").read_text().splitlines()]


def test_every_window_has_the_accuracy_of_the_mean_of_its_weights(runs):
    """The slow twin: all weights in memory, averaged in float64 by NumPy, evaluated by a plain forward pass."""
    (measured, _), _ = measure_windows([runs], WindowsConfig(n_images=30))
    assert measured.segments == SPANS
    run = open_run(runs / "paper-0")
    weights = [load_file(runs / "paper-0" / "weights" / f"step-{step:06d}.safetensors") for step in range(1, STEPS + 1)]
    model = run.model("last")
    sources, target = run.held_out
    parts = {"validation": sources.val, "target": target.full}
    images = {}
    for side, splits in parts.items():
        for split in splits:
            ((pixels, labels),) = run.loader(stratified_subset(split, 30), None, torch.device("cpu"))
            images.setdefault(side, []).append((pixels, labels))
    averaged = open_run(runs / "paper-0").model("last")
    windows = SegmentWindows(load_segments(runs / "paper-0" / "segments"), averaged)
    differing = 0
    for (begin, end), _ in zip(all_windows(len(SPANS)), windows.averages(), strict=True):
        inside = weights[SPANS[begin][0] - 1 : SPANS[end][1]]
        mean = {name: np.mean([w[name].double().numpy() for w in inside], axis=0) for name in weights[0]}
        model.load_state_dict({name: torch.from_numpy(value).float() for name, value in mean.items()})
        for name, value in averaged.state_dict().items():
            np.testing.assert_allclose(value.numpy(), mean[name], rtol=1e-5, atol=1e-7)
        for side, domains in images.items():
            with torch.no_grad():
                want = np.mean([(model(pixels).argmax(1) == labels).double().mean() for pixels, labels in domains])
            got = measured.windows[side][begin, end]
            assert got == pytest.approx(want, abs=0.038), (begin, end, side)  # rounding may flip one image
            differing += got != pytest.approx(want)
    assert differing <= 2
    assert len({*measured.windows["validation"].values(), *measured.windows["target"].values()}) > 10, "they differ"
    for name in ("swad", "last", "best"):
        model.load_state_dict(run.state(name))
        with torch.no_grad():
            want = np.mean([(model(pixels).argmax(1) == labels).double().mean() for pixels, labels in images["target"]])
        assert measured.weights["target"][name] == pytest.approx(want)


@pytest.mark.parametrize("every", [1, 4, 5, 6, 7])
def test_merged_segments_are_windows_of_single_ones(runs, every):
    files = load_segments(runs / "paper-0" / "segments")
    model = open_run(runs / "paper-0").model("last")
    merged = SegmentWindows(files, model, every)
    lasts = [*range(4 * every, STEPS, 4 * every), STEPS]
    assert [span.last for span in merged.spans] == lasts
    window = merged.all()[-1]
    merged.copy_average(window)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    SegmentWindows(files, model).copy_average(window)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_an_interrupted_measurement_resumes_and_a_complete_one_needs_nothing_else(fresh, monkeypatch):
    evaluate, count, limit = segment_runs.evaluate_splits, 0, 12

    def limited(*arguments):
        nonlocal count
        count += 1
        if count > limit:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(segment_runs, "evaluate_splits", limited)
    config = WindowsConfig(n_images=20, every=2)
    with pytest.raises(KeyboardInterrupt):
        measure_windows([fresh], config)
    before = rows_of(fresh / "paper-0")
    assert len(before) == 1 + 12
    with (fresh / "paper-0" / "windows.jsonl").open("a") as file:
        file.write('{"v": 1, "key": "half a li')
    limit = 10**6
    seen = []
    assert list(stored_windows([fresh])[0][0].windows) == ["target"], "the side that is complete"
    measured, notes = measure_windows([fresh], config, progress=lambda what, done, total: seen.append((done, total)))
    after = rows_of(fresh / "paper-0")
    assert after[: len(before)] == before
    assert count == 1 + 2 * 2 * (6 + 3), "each window of three segments, and three saved weights, on two sides"
    assert seen[-1] == (24, 24)
    assert not notes
    assert stored_windows([fresh]) == (measured, notes)
    done = count
    for path in fresh.glob("paper-*"):
        shutil.rmtree(path / "segments")
        shutil.rmtree(path / "weights")
    again, _ = measure_windows([fresh], config)
    assert again == measured
    assert count == done
    with pytest.raises(RunError, match=r"no segments any more, .* other settings \(show them with --stored\)"):
        measure_windows([fresh], WindowsConfig(n_images=None))


def test_one_side_can_be_added_to_another(fresh):
    first = fresh / "paper-0"
    (alone,), _ = measure_windows([first], WindowsConfig(("target",), 20, 3))
    assert list(alone.windows) == ["target"]
    n_rows = len(rows_of(first))
    (both,), _ = measure_windows([first], WindowsConfig(n_images=20, every=3))
    assert both.windows["target"] == alone.windows["target"]
    assert len(rows_of(first)) == n_rows + 3 + 3
    for n_images, every in ((10, 6), (20, 3), (10, 6)):
        measure_windows([first], WindowsConfig(n_images=n_images, every=every))
        assert stored_windows([first])[0][0].images == n_images, "the one that was requested last"
    ((run,), _) = finished_runs([first])
    _, (note,) = stored_windows([fresh])
    assert note == f"{fresh / 'paper-1'} skipped: its measurement is not complete"
    without = dataclasses.replace(run, config={**run.config, "target": None})
    assert read_windows(without)[0].group[0] == "digits, no target"


def test_an_average_is_measured_with_the_buffers_of_its_last_update(tmp_path):
    """As windows are: otherwise batch norms whose statistics were estimated again would favor it."""
    model = torch.nn.BatchNorm1d(1)
    group = AverageGroup(model, {}, {"log": SegmentLog(model, tmp_path / "segments")})
    for step in (1, 2, 3):
        model.running_mean.fill_(step)
        group.update_parameters(model)
        group.observe(1.0)
    saved = {"weight": torch.tensor([5.0]), "running_mean": torch.tensor([7.0])}
    run = SimpleNamespace(path=tmp_path, ranges={"swad": {"end_step": 2}}, weights={}, state=lambda name: saved)
    ((name, state),) = run_windows._saved_states(run, "swad")
    assert (name, state["weight"].item(), state["running_mean"].item()) == ("swad", 5.0, 2.0)


def test_long_runs_are_merged_by_default(runs, monkeypatch):
    monkeypatch.setattr(segment_runs, "MAX_SEGMENTS", 4)
    run = open_run(runs / "paper-0")
    files = load_segments(runs / "paper-0" / "segments")
    assert run_windows._settings(run, files, WindowsConfig())["segments"] == [[1, 8], [9, 16], [17, 24]]


@pytest.mark.gpu
def test_a_gpu_measures_the_same_with_images_and_segments_kept_there(fresh):
    """On both sides the first evaluation is eager and the others are replays of a graph."""
    config = WindowsConfig(n_images=40)
    on_cpu, on_gpu = (measure_windows([fresh / "paper-0"], config, device=name)[0][0] for name in ("cpu", "cuda"))
    assert on_cpu.settings["device"] == "cpu"
    assert on_gpu == on_cpu, "a complete measurement of another device is used"
    shutil.move(fresh / "paper-0" / "windows.jsonl", fresh / "cpu.jsonl")
    (on_gpu,), _ = measure_windows([fresh / "paper-0"], config, device="cuda")
    assert on_gpu.settings["device"] == "cuda"
    for side, accuracies in on_cpu.windows.items():
        assert on_gpu.windows[side] == pytest.approx(accuracies, abs=0.03)


def test_missing_and_exchanged_segments_are_refused(fresh):
    first, second, *_, last = sorted((fresh / "paper-0" / "segments").iterdir())
    content = last.read_bytes()
    last.unlink()
    for command in (measure_windows, lambda paths: tune(paths, [ValleySetting(2, 1, 0.0)])):
        with pytest.raises(RunError, match=rf"segment up to update {int(last.stem[8:])} is missing.*restore the files"):
            command([fresh])
    last.write_bytes(content)
    content = second.read_bytes()
    second.write_bytes(first.read_bytes())
    for command in (measure_windows, lambda paths: tune(paths, [ValleySetting(2, 1, 0.0)])):
        with pytest.raises(ValueError, match=rf"{second.name} is damaged .*it holds the updates 1 to"):
            command([fresh])
    second.write_bytes(content)
    last.with_name("segment-00009999.pt").write_bytes(content)
    with pytest.raises(RunError, match="the segment up to update 9999 is not of this run"):
        measure_windows([fresh])


def test_errors_say_what_to_do(fresh, monkeypatch):
    runs, _ = finished_runs([fresh])
    without = [dataclasses.replace(run, config={**run.config, "target": None}) for run in runs]
    with monkeypatch.context() as patch, pytest.raises(RunError, match=r"no target \(use --evaluate-on validation\)"):
        patch.setattr(run_windows, "finished_runs", lambda paths: (without, []))
        measure_windows([fresh], WindowsConfig(("target",)))
    with pytest.raises(RunError, match=r"skipped: it has no average 'swa' \(use --average with one of: swad\)"):
        measure_windows([fresh], WindowsConfig(average="swa"))
    for path in fresh.glob("paper-*"):
        shutil.rmtree(path / "segments")
    with pytest.raises(RunError, match=r"1 more skipped: it kept no segments \(train with --keep-segments\)"):
        measure_windows([fresh])
