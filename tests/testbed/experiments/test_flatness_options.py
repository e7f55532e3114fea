"""Which split, which measure and which weights of a run are measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.tiny_runs import COARSE, copied
from swad.flatness import image_losses, local
from swad.testbed.data import benchmarks
from swad.testbed.data.splits import hold_out
from swad.testbed.experiments import run_flatness
from swad.testbed.experiments.run_flatness import FlatnessConfig
from swad.testbed.measure.finished_runs import choose_weights
from swad.testbed.measure.saved_run import WINDOW, open_run
from swad.testbed.results.flatness_runs import paired_differences, read_flatness
from swad.testbed.results.labels import weights_label
from swad.testbed.results.measurement_rows import FLATNESS, read_rows
from swad.testbed.results.runs import load_run
from swad.testbed.training.loop import RunError


@pytest.fixture
def run(tiny_run, tmp_path):
    """A run without measurements, whose SWAD averaged steps 10 to 30, as if it were so."""
    opened = open_run(copied(tiny_run, tmp_path / "run"))
    return replace(opened, ranges={"swad": {"start_step": 10, "end_step": 30}})


def test_the_split_of_the_sources_is_that_of_the_run(run):
    sources, target = hold_out(benchmarks.load("digits"), "paper", trial=0)
    counts = {
        split: [len(labels) for _, labels in run.images(None, split=split).by_domain.values()]
        for split in ("training", "validation", "all")
    }
    whole = len(target.full[0])
    assert counts["training"] == [*(len(part) for part in sources.train), whole]
    assert counts["validation"] == [*(len(part) for part in sources.val), whole]
    both = zip(sources.train, sources.val, strict=True)
    assert counts["all"] == [*(len(train) + len(val) for train, val in both), whole]
    every = run.images(None, split="all").by_domain["board"][0]
    for split in ("training", "validation"):
        part = run.images(None, split=split).by_domain["board"][0]
        assert bool((part[:, None] == every[None]).flatten(2).all(2).any(1).all())


def test_measures_have_keys_of_their_own_and_come_from_one_pass(run):
    run_flatness.run_local(run, ["best", "swad"], COARSE)
    plain = read_flatness(load_run(run.path))
    config = replace(COARSE, error=True, split="validation", logits="normalized")
    run_flatness.run_local(run, ["best", "swad"], config)
    loss, error = (read_flatness(load_run(run.path), measure=measure) for measure in ("loss", "error"))
    assert (loss.measure, error.measure) == ("loss", "error")
    assert loss.settings["split"] == error.settings["split"] == "validation"
    assert loss.settings["logits"] == "normalized"
    assert "split" not in plain.settings
    assert loss.curves["unseen"][0].mean != plain.curves["unseen"][0].mean
    # The twin: errors alone, measured on their own.
    images = run.images(COARSE.n_images, split="validation")
    twin = local(run.model("swad"), image_losses(images.by_domain, measure="error"), COARSE.radii, COARSE.n_directions)
    expected = [twin.row(radius, "paper").mean for radius in COARSE.radii]
    assert error.curve("unseen", "SWAD").mean == pytest.approx(expected)
    (differences,) = paired_differences([error]).values()
    assert {difference.side for difference in differences} == {"seen", "unseen"}
    written = (run.path / FLATNESS).read_text()
    run_flatness.run_local(run, ["best", "swad"], config)
    assert (run.path / FLATNESS).read_text() == written
    # The measurement of losses alone reuses those that came with errors.
    run_flatness.run_local(run, ["best", "swad"], replace(config, error=False))
    raw = [row for row in read_rows(run.path, FLATNESS) if row["kind"] == "flatness"]
    assert len(raw) == 2 + 2 * 2


def test_scaled_logits_are_fitted_to_the_sources_alone(run):
    config = replace(COARSE, logits="normalized")
    result = run_flatness.run_local(run, ["best", "swad"], config).models["swad"]
    images = run.images(COARSE.n_images)
    seen = image_losses(images.side("seen"), logits="normalized")
    assert result.settings["logit_scale"] == pytest.approx(seen.fit(run.model("swad")), rel=1e-6)


def test_the_window_is_the_mean_of_its_snapshots(run):
    names = ["best", WINDOW, "swad"]
    found = run_flatness.run_local(run, names, COARSE)
    assert run.window_snapshots == ("step-000010", "step-000020", "step-000030")
    alone = run_flatness.run_local(run, list(run.window_snapshots), COARSE)
    for radius in COARSE.radii:
        mean = np.mean([alone.models[name].row(radius, "unseen").mean for name in run.window_snapshots])
        assert found.models[WINDOW].row(radius, "unseen").mean == pytest.approx(mean)
    raw = [row["model"] for row in read_rows(run.path, FLATNESS) if row["kind"] == "flatness"]
    assert sorted(raw) == sorted([*names, *run.window_snapshots])  # nothing was measured twice
    run_flatness.run_local(run, names, COARSE)
    data = load_run(run.path)
    measured = read_flatness(data, names)
    assert weights_label(data, WINDOW) == "ERM (window)"
    (differences,) = paired_differences([measured]).values()
    assert {difference.curve.method for difference in differences} == {"ERM (window)", "SWAD"}
    # Worst case and curvature are those of single weights.
    rows = run_flatness.run_worst_case(run, names, [0.1], FlatnessConfig(n_images=12), steps=1, restarts=0)
    assert {row["weights"] for row in rows} == {"best", "swad"}


def test_a_window_without_snapshots_is_an_error(run):
    empty = replace(run, ranges={"swad": {"start_step": 21, "end_step": 29}})
    with pytest.raises(RunError, match=r"no snapshot inside the range that SWAD averaged \(21-29\): train it"):
        choose_weights([empty], [WINDOW])
    chosen, notes = choose_weights([empty, run], ["best", WINDOW])
    assert (chosen[1], notes) == ((run, ["best", WINDOW]), [])
    other = replace(run, path=Path("cyclic"), weights={"swa": "swa.safetensors"})
    chosen, notes = choose_weights([run, other], ["best"])
    assert (chosen, notes) == ([(run, ["best"])], ["skipped cyclic, which has none of best"])
    many = {f"step-{step:06d}": "file" for step in range(1, 31)}
    assert replace(run, weights=many).window_snapshots == tuple(f"step-{step:06d}" for step in (10, 15, 20, 25, 30))


def test_bf16_of_a_run_differs_by_far_less_than_its_interval(run):
    config = replace(COARSE, radii=(0.0, 10.0, 20.0), n_directions=12)  # the run is too short for smaller ones
    exact, half = (
        run_flatness.run_local(run, ["swad"], replace(config, precision=precision)).models["swad"]
        for precision in ("fp32", "bf16")
    )
    for one, two in zip(exact.rows, half.rows, strict=True):
        if one.radius:
            assert 0 < abs(one.mean - two.mean) < 0.1 * (one.high - one.low) / 2
    settings = [row for row in read_rows(run.path, FLATNESS) if row["kind"] == "settings"]
    assert [row.get("precision") for row in settings] == [None, "bf16"]


def test_the_default_precision_on_a_gpu_is_that_of_the_training(run):
    half = replace(run, config=run.config.replace(precision="bf16"))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    chosen = [COARSE.precision_of(each, device) for each in (run, half) for device in (cpu, gpu)]
    assert chosen == ["fp32", "fp32", "fp32", "bf16"]
    assert COARSE.settings(half, gpu) == replace(COARSE, precision="bf16").settings(run, gpu)
    assert replace(COARSE, precision="fp32").precision_of(half, gpu) == "fp32"
