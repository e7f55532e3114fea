"""The accuracy of every window against averages of the weights after every step, and resuming."""

from __future__ import annotations

import json
import shutil
from itertools import combinations_with_replacement
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
from swad.testbed.measure import engine, kept_segments
from swad.testbed.measure.engine import choose_weights
from swad.testbed.measure.saved_run import open_run, open_runs, stratified_subset
from swad.testbed.measurements.tune import Tune
from swad.testbed.measurements.windows import Windows, saved_state
from swad.testbed.results.measured import measured
from swad.testbed.results.runs import load_run
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


def measure(path, what, names=(), device="cpu"):
    found, _ = open_runs([path])
    chosen, _ = choose_weights(found, names, what)
    paths = engine.measure(engine.plan(chosen, what, device), device)
    return measured([load_run(each) for each in paths], Windows)


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "windows.jsonl").read_text().splitlines()]


def accuracies(values, trial=0):
    of_trial = values[(values["quantity"] == "Accuracy, %") & (values["trial"] == trial)]
    return {(row.side, row.weights): row.value for row in of_trial.itertuples()}


def test_every_window_has_the_accuracy_of_the_mean_of_its_weights(runs):
    """The slow twin: all weights in memory, averaged in float64 by NumPy, evaluated by a plain forward pass."""
    got = accuracies(measure(runs, Windows(images=30)))
    run = open_run(runs / "paper-0")
    weights = [load_file(runs / "paper-0" / "weights" / f"step-{step:06d}.safetensors") for step in range(1, STEPS + 1)]
    model = run.model("last")
    images = {}
    for side, splits in {"seen": run.held_out.sources.val, "unseen": run.held_out.target.full}.items():
        for split in splits:
            ((pixels, labels),) = run.loader(stratified_subset(split, 30), None, torch.device("cpu"))
            images.setdefault(side, []).append((pixels, labels))

    def accuracy(side):
        with torch.no_grad():
            return 100 * np.mean([(model(x).argmax(1) == y).double().mean() for x, y in images[side]])

    averaged = open_run(runs / "paper-0").model("last")
    windows = SegmentWindows(load_segments(runs / "paper-0" / "segments"), averaged)
    differing = 0
    pairs = combinations_with_replacement(SPANS, 2)
    for (first, last), _ in zip(((a[0], b[1]) for a, b in pairs), windows.averages(), strict=True):
        inside = weights[first - 1 : last]
        mean = {name: np.mean([w[name].double().numpy() for w in inside], axis=0) for name in weights[0]}
        model.load_state_dict({name: torch.from_numpy(value).float() for name, value in mean.items()})
        for name, value in averaged.state_dict().items():
            np.testing.assert_allclose(value.numpy(), mean[name], rtol=1e-5, atol=1e-7)
        for side in images:
            found, want = got[side, f"{first}-{last}"], accuracy(side)
            assert found == pytest.approx(want, abs=3.8), (first, last, side)  # rounding may flip one image
            differing += found != pytest.approx(want)
    assert differing <= 2
    assert len(set(got.values())) > 10, "they differ"
    for name in ("swad", "last", "best"):
        model.load_state_dict(run.state(name))
        assert got["unseen", name] == pytest.approx(accuracy("unseen"))


@pytest.mark.parametrize("every", [1, 4, 5, 6, 7])
def test_merged_segments_are_windows_of_single_ones(runs, every):
    files = load_segments(runs / "paper-0" / "segments")
    model = open_run(runs / "paper-0").model("last")
    merged = SegmentWindows(files, model, every)
    assert [(span.first, span.last) for span in merged.spans] == kept_segments.merged_segments(files, every)
    window = merged.all()[-1]
    merged.copy_average(window)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    SegmentWindows(files, model).copy_average(window)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_an_interrupted_measurement_resumes_and_is_read_without_weights(fresh, monkeypatch):
    evaluate, count, limit = kept_segments.evaluate_splits, 0, 12

    def limited(*arguments):
        nonlocal count
        count += 1
        if count > limit:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(kept_segments, "evaluate_splits", limited)
    what = Windows(images=20, every=2)
    with pytest.raises(KeyboardInterrupt):
        measure(fresh, what)
    before = rows_of(fresh / "paper-0")
    assert measured([load_run(fresh / "paper-0")], Windows).empty, "it is not complete"
    with (fresh / "paper-0" / "windows.jsonl").open("a") as file:
        file.write('{"v": 1, "key": "half a li')
    limit = 10**6
    values = measure(fresh, what)
    assert rows_of(fresh / "paper-0")[: len(before)] == before
    assert count == 1 + 2 * 2 * (6 + 3), "each window of three segments, and three saved weights, on two sides"
    assert list(values["weights"].unique()[:1]) == ["swad"], "others are compared with it"
    done = count
    for path in fresh.glob("paper-*"):
        shutil.rmtree(path / "segments")
        shutil.rmtree(path / "weights")
    assert measured([load_run(path) for path in sorted(fresh.glob("paper-*"))], Windows).equals(values)
    assert count == done
    with pytest.raises(RunError, match=r"kept no segments \(train with --keep-segments; .* with --stored\)"):
        measure(fresh, what)


def test_one_side_can_be_added_to_another(fresh):
    first = fresh / "paper-0"
    alone = accuracies(measure(first, Windows(images=20, every=3, side="unseen")))
    assert {side for side, _ in alone} == {"unseen"}
    both = accuracies(measure(first, Windows(images=20, every=3)))
    assert alone.items() < both.items()
    assert len(rows_of(first)) == 1 + 6 + 1 + 3 * 6, "the target, what is shown, three sources"


def test_runs_that_cannot_be_compared_are_refused_before_they_are_evaluated(fresh, tmp_path, monkeypatch):
    train(short(fresh / "paper-2", keep_segments=True, trial=2, averages=("swad",), steps=20))
    monkeypatch.setattr(kept_segments, "evaluate_splits", lambda *_: pytest.fail("evaluated"))
    with pytest.raises(ValueError, match=r"must have the same segments, but .*paper-0 and .*paper-2 do not"):
        measure(fresh, Windows(images=20))
    with pytest.raises(ValueError, match=r"name one of swad in --weights, got last, best of .*paper-0"):
        measure(fresh / "paper-0", Windows(images=20), ["last", "best"])
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        Windows(every=0)


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
    state = saved_state(run, "swad")
    assert (state["weight"].item(), state["running_mean"].item()) == (5.0, 2.0)


def test_long_runs_are_merged_by_default(runs, monkeypatch):
    monkeypatch.setattr(kept_segments, "MAX_SEGMENTS", 4)
    run = open_run(runs / "paper-0")
    assert Windows().on(run, torch.device("cpu")).every == 2


@pytest.mark.gpu
def test_a_gpu_measures_the_same_with_images_and_segments_kept_there(fresh):
    """On both sides the first evaluation is eager and the others are replays of a graph."""
    on_cpu = accuracies(measure(fresh / "paper-0", Windows(images=40)))
    (fresh / "paper-0" / "windows.jsonl").unlink()
    on_gpu = accuracies(measure(fresh / "paper-0", Windows(images=40), device="cuda"))
    assert on_gpu == pytest.approx(on_cpu, abs=3)


def test_missing_and_exchanged_segments_are_refused(fresh):
    def commands():
        yield lambda: measure(fresh, Windows(images=20))
        yield lambda: measure(fresh, Tune(n_converge=(2,), n_tolerance=(1,), tolerance_ratio=(0.0,)))

    first, second, *_, last = sorted((fresh / "paper-0" / "segments").iterdir())
    content = last.read_bytes()
    last.unlink()
    for command in commands():
        with pytest.raises(RunError, match=rf"segment up to update {int(last.stem[8:])} is missing.*restore the files"):
            command()
    last.write_bytes(content)
    content = second.read_bytes()
    second.write_bytes(first.read_bytes())
    for command in commands():
        with pytest.raises(ValueError, match=rf"{second.name} is damaged .*it holds the updates 1 to"):
            command()
    second.write_bytes(content)
    last.with_name("segment-00009999.pt").write_bytes(content)
    with pytest.raises(RunError, match="the segment up to update 9999 is not of this run"):
        measure(fresh, Windows(images=20))
