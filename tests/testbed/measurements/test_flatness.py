"""Flatness, worst case and curvature of runs: against a slow loop, resumed, and with each option."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import HELPERS
from helpers.forked import run as run_process
from helpers.tiny_runs import COARSE, NAMES, copied, measure, tiny
from swad.flatness import image_losses, local
from swad.flatness.directions import Directions
from swad.flatness.weights import Weights
from swad.testbed.measure import engine
from swad.testbed.measure.saved_run import WINDOW, open_run
from swad.testbed.measurements.curvature import Curvature
from swad.testbed.measurements.flatness import Flatness
from swad.testbed.measurements.flatness_of_error import FlatnessOfError
from swad.testbed.measurements.worst_case import WorstCase
from swad.testbed.results.measured import measured
from swad.testbed.results.measurement_rows import FLATNESS, SURFACE, RowFile, read_rows
from swad.testbed.results.records import RecordError
from swad.testbed.results.runs import load_run
from swad.testbed.training import export
from swad.testbed.training.loop import train


@pytest.fixture
def run(tiny_run, tmp_path):
    """A run without measurements, whose SWAD averaged steps 10 to 30, as if it were so."""
    opened = open_run(copied(tiny_run, tmp_path / "run"))
    return replace(opened, ranges={"swad": {"start_step": 10, "end_step": 30}})


def values(run, names, what, device="cpu"):
    """Measure, and return what is read back by weights, side and quantity."""
    engine.measure(engine.plan([(run, names)], what, device), device)
    return measured([load_run(run.path)], type(what)).set_index(["weights", "side", "quantity"])["value"]


@pytest.mark.slow
def test_flatness_is_what_a_plain_loop_finds(tiny_run, tmp_path):
    """The slow twin: a fresh model for every direction, its weights written one by one."""
    folder = copied(tiny_run, tmp_path / "run")
    run = open_run(folder)
    found = values(run, NAMES, COARSE)
    images = run.images(COARSE.images)
    for name in NAMES:
        path = folder / "weights" / f"{name}.safetensors"
        start = export.load_predictor(path).model
        with Weights(start) as weights:
            directions = Directions(weights, 0, True, "sphere")
            drawn = [[tensor.clone() for tensor in directions[k]] for k in range(6)]
        for side, domains in (("seen", images.seen), ("unseen", images.unseen)):

            def loss(model: torch.nn.Module, domains: list[str] = domains) -> float:
                with torch.no_grad():
                    values = [functional.cross_entropy(model(x), y) for x, y in (images.by_domain[d] for d in domains)]
                return float(sum(values) / len(values))

            for radius in (2.0, 5.0):
                rises = []
                for direction in drawn:
                    model = export.load_predictor(path).model
                    for parameter, tensor in zip(model.parameters(), direction, strict=True):
                        parameter.data += radius * tensor
                    rises.append(loss(model) - loss(start))
                assert found[name, side, radius] == pytest.approx(np.mean(rises), rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "file", "fatal"), [("flatness", FLATNESS, 3), ("surface", SURFACE, 12)])
def test_killed_work_goes_on_to_the_same_rows(tiny_run, tmp_path, what, file, fatal):
    killed, whole = copied(tiny_run, tmp_path / "killed"), copied(tiny_run, tmp_path / "whole")
    script = HELPERS / "tiny_runs.py"
    process = run_process([script, killed, what, str(fatal)])
    assert process.returncode == -9, process.stderr
    text = (killed / file).read_text()
    assert text.endswith("half a li")
    kept = len(read_rows(killed, file))
    assert kept >= fatal - 1
    measure(killed, what)
    measure(whole, what)
    assert len(read_rows(whole, file)) > kept
    assert read_rows(killed, file) == read_rows(whole, file)


def test_the_error_is_a_measurement_of_its_own(run):
    options = {name: getattr(COARSE, name) for name in ("images", "radii", "directions")}
    what = FlatnessOfError(**options, source_split="validation", logits="normalized")
    loss, error = values(run, ["best", "swad"], COARSE), values(run, ["best", "swad"], what)
    images = run.images(COARSE.images, split="validation")
    twin = local(run.model("swad"), image_losses(images.by_domain, measure="error"), COARSE.radii, COARSE.directions)
    for radius in (2.0, 5.0):
        assert error["swad", "unseen", radius] == pytest.approx(twin.row(radius, "paper").mean)
    assert loss.equals(values(run, ["best", "swad"], COARSE))


def test_the_window_is_the_mean_of_its_snapshots(run):
    assert run.window_snapshots == ("step-000010", "step-000020", "step-000030")
    found = values(run, ["best", WINDOW], COARSE)
    alone = values(run, run.window_snapshots, COARSE)
    for side in ("seen", "unseen"):
        mean = np.mean([alone[name, side, 5.0] for name in run.window_snapshots])
        assert found[WINDOW, side, 5.0] == pytest.approx(mean)
    with pytest.raises(ValueError, match="worst_case is measured of single weights"):
        engine.plan([(run, [WINDOW])], WorstCase())


def test_only_included_parameters_are_perturbed(run):
    some = replace(COARSE, include=("head.*", "hidden.*"), exclude=("*.bias",))
    whole, part = values(run, ["swad"], COARSE), values(run, ["swad"], some)
    assert not whole.equals(part)
    twin = local(
        run.model("swad"),
        image_losses(run.images(20).by_domain),
        COARSE.radii,
        COARSE.directions,
        include=["head.weight", "hidden.0.weight"],
    )
    assert part["swad", "unseen", 5.0] == pytest.approx(twin.row(5.0, "paper").mean, rel=1e-5)
    settings = [row for row in read_rows(run.path, FLATNESS) if row["kind"] == "settings"]
    assert [row.get("include") for row in settings] == [None, ["head.*", "hidden.*"]]


def test_defaults_depend_on_network_and_training(run):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert Flatness().on(run, cpu).radii[-1] == 24
    assert Flatness(normalize="layer").on(run, cpu).radii == tuple(k / 10 for k in range(11))
    half = replace(run, config=run.config.replace(precision="bf16"))
    chosen = [COARSE.on(each, device).precision for each in (run, half) for device in (cpu, gpu)]
    assert chosen == ["fp32", "fp32", "fp32", "bf16"]
    with pytest.raises(ValueError, match="radii must be different numbers of 0 or more"):
        Flatness(radii=(-1.0,)).on(run, cpu)
    for directions in (2, 5):
        with pytest.raises(ValueError, match="directions must be an even number of at least 4"):
            Flatness(directions=directions)
    with pytest.raises(ValueError, match="normalize must be one of sphere, filter, layer, got 'cube'"):
        Flatness(normalize="cube")


def test_values_that_are_not_finite_do_not_stop_the_table(run):
    found = values(run, ["best", "swad"], replace(COARSE, radii=(0.0, 3.0, 1e25)))
    assert not np.isfinite(found["swad", "seen", 1e25])
    assert np.isfinite(found["swad", "seen", 3.0])


@pytest.mark.gpu
def test_on_a_gpu_graphs_give_what_single_calls_give(run, tmp_path, monkeypatch):
    graph = values(run, NAMES, COARSE, "cuda")
    (run.path / FLATNESS).unlink()
    monkeypatch.setattr("swad.flatness.captured", lambda loss_fn, model: loss_fn)
    calls = values(run, NAMES, COARSE, "cuda")
    assert list(graph) == pytest.approx(list(calls), rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_the_worst_case_is_at_least_the_loss(run):
    what = WorstCase(images=15, radii=(0.02, 0.2), steps=3, restarts=1)
    found = values(run, ["best", "swad"], what)
    (job,) = engine.plan([(run, ["best", "swad"])], what)
    rows = job.rows()
    assert len(rows) == 8
    for row in rows:
        assert row["lower_bound"] >= row["loss"]
        assert row["measure"] == "loss" or 0 <= row["lower_bound"] <= 1
    of_swad = found["swad", "seen"]
    assert of_swad["Loss"] <= of_swad["Loss, γ = 0.02"] <= of_swad["Loss, γ = 0.2"]


@pytest.mark.slow
def test_curvature_of_a_run(run):
    pytest.importorskip("curvlinops")
    found = values(run, ["swad"], Curvature(images=10, eigenvalues=1, trace_vectors=2))
    assert {(side, quantity) for _, side, quantity in found.index} == {
        (side, quantity) for side in ("seen", "unseen") for quantity in ("λ1", "Trace")
    }
    assert found["swad", "seen", "λ1"] > 0


def test_curvature_multiplies_for_the_mean_of_each_side_alone(run):
    """A row of every domain, which no table shows, would cost as much as the mean."""
    what, products = Curvature(images=10, eigenvalues=0, trace_vectors=2), []
    engine.measure(engine.plan([(run, ["swad"])], what), "cpu", progress=lambda *call: products.append(call))
    sides = 2
    assert len(products) <= sides * (what.trace_vectors + 1) + 2


def test_curvature_without_its_package_fails_before_anything_is_measured(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "curvlinops", None)
    with pytest.raises(ValueError, match="pip install"):
        engine.plan([(run, ["swad"])], Curvature())


@pytest.mark.slow
def test_methods_that_judge_groups_of_images_get_whole_groups(tmp_path):
    changes = {
        "algorithm": "arm",
        "hyperparameters": {"batch_size": 8, "context_width": 8},
        "steps": 4,
        "evaluate_every": 2,
        "validation_subsample": 16,
        "snapshots": (),
    }
    run = open_run(train(tiny(tmp_path / "run", **changes)).run_dir)
    images = run.images(20)
    assert {len(labels) for _, labels in images.by_domain.values()} == {16}
    values(run, ["best"], COARSE)
    (job,) = engine.plan([(run, ["best"])], COARSE)
    model = run.model("best")
    pictures, labels = images.by_domain["paper"]
    with torch.no_grad():
        groups = [functional.cross_entropy(model(pictures[i : i + 8]), labels[i : i + 8]).item() for i in (0, 8)]
    loss = next(row["loss"] for row in job.rows() if row["domain"] == "paper")
    assert loss == pytest.approx(sum(groups) / 2, rel=1e-5)
    assert job.settings["mixed_groups"] == 8


def test_one_process_writes_at_a_time(run):
    with RowFile(run.path, FLATNESS), pytest.raises(RecordError, match="is being written by process"):
        values(run, ["swad"], COARSE)
    values(run, ["swad"], COARSE)  # and was let go
