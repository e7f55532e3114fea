import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import HELPERS
from helpers.forked import run
from helpers.tiny_runs import COARSE, NAMES, copied, measure, tiny
from swad.flatness import compare, image_losses
from swad.flatness.directions import Directions
from swad.flatness.weights import Weights
from swad.testbed.data import benchmarks
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import hold_out
from swad.testbed.experiments import run_flatness, run_surface
from swad.testbed.experiments.run_flatness import FlatnessConfig
from swad.testbed.measure.finished_runs import open_runs
from swad.testbed.measure.saved_run import SavedRun, open_run, stratified_subset
from swad.testbed.results.flatness_runs import read_flatness
from swad.testbed.results.flatness_stats import average_curves
from swad.testbed.results.measurement_rows import FLATNESS, SURFACE, RowFile, read_rows
from swad.testbed.results.records import RecordError
from swad.testbed.results.runs import load_run
from swad.testbed.training import export
from swad.testbed.training.loop import RunError, train


def rows(folder: Path, name: str) -> list[dict]:
    return read_rows(folder, name)


# --- opening ------------------------------------------------------------------------------------------------------


def test_a_run_says_which_weights_it_has(tiny_run):
    run = open_run(tiny_run)
    assert run.reported == ("best", "last", "swad", "swa")
    assert run.snapshots == {"step-000010": 10, "step-000020": 20, "step-000030": 30}
    assert run.full_name("20") == "step-000020"
    with pytest.raises(RunError, match="has no weights 'ema'; it has best, last, swad, swa, step-000010"):
        run.file("ema")


def test_folders_of_runs_are_searched_and_unfinished_runs_named(tiny_run, tmp_path):
    (tmp_path / "runs").mkdir()
    copied(tiny_run, tmp_path / "runs" / "a")
    open_ = copied(tiny_run, tmp_path / "runs" / "b")
    (open_ / "done.json").unlink()
    found, left_out = open_runs([tmp_path / "runs"])
    assert [run.path.name for run in found] == ["a"]
    assert left_out == [f"{open_} skipped: unfinished"]
    (tmp_path / "runs" / "a" / "done.json").unlink()
    with pytest.raises(RunError, match=r"no finished run to measure \(.*a and 1 more skipped: unfinished\): run"):
        open_runs([tmp_path / "runs"])
    with pytest.raises(RunError, match="b is unfinished: run its `swad train` or `swad sweep` again to finish it"):
        open_run(open_)
    with pytest.raises(RunError, match="holds no run"):
        open_run(tmp_path)


def test_images_are_those_of_the_runs_own_split(tiny_run):
    run = open_run(tiny_run)
    images = run.images(30)
    assert (images.seen, images.unseen) == (("board", "clutter", "outline"), ("paper",))
    sources, target = hold_out(benchmarks.load("digits"), "paper", trial=0)
    for part in (*sources.train, *target.full):
        pictures, labels = images.by_domain[part.name]
        assert len(labels) == 30
        whole, whole_labels = next(iter(EvalLoader(part, sources.image_spec, 4096)))
        same = (pictures[:, None] == whole[None]).flatten(2).all(2)
        assert bool((same.sum(1) == 1).all()), "each is an image of the split, and only one"
        assert whole_labels[same.int().argmax(1)].tolist() == labels.tolist()
    everything = run.images(None)
    assert [len(labels) for _, labels in everything.by_domain.values()] == [360, 360, 360, 449]


@pytest.mark.parametrize("n", [1, 7, 50, 333, 10_000])
def test_a_stratified_subset_keeps_the_classes_in_proportion(n):
    part = hold_out(benchmarks.load("digits"), "paper").sources.train[1]
    some = stratified_subset(part, n)
    assert len(some) == min(n, len(part))
    assert set(some.keys) <= set(part.keys)
    assert len(set(some.keys)) == len(some)
    assert some.keys.tolist() == stratified_subset(part, n).keys.tolist()
    share = np.bincount(part.labels, minlength=10) * min(n, len(part)) / len(part)
    assert np.abs(np.bincount(some.labels, minlength=10) - share).max() < 1


# --- flatness -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_flatness_is_what_a_plain_loop_finds(tiny_run, tmp_path):
    """The slow twin: a fresh model for every direction, its weights written one by one."""
    folder = copied(tiny_run, tmp_path / "run")
    run = open_run(folder)
    found = run_flatness.run_local(run, NAMES, COARSE)
    images = run.images(COARSE.n_images)
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
                assert found.models[name].row(radius, side).mean == pytest.approx(np.mean(rises), rel=1e-4, abs=1e-5)


def test_the_file_holds_what_was_found_and_nothing_is_measured_twice(tiny_run, tmp_path, monkeypatch):
    folder = copied(tiny_run, tmp_path / "run")
    run = open_run(folder)
    found = run_flatness.run_local(run, NAMES, COARSE)
    written = (folder / FLATNESS).read_text()
    shown = [row for row in rows(folder, FLATNESS) if row["kind"] == "row"]
    assert {row["weights"] for row in shown} == set(NAMES)
    assert {row["domain"] for row in shown} == {"board", "clutter", "outline", "paper", "seen", "unseen", None}
    for row in shown:
        assert row["mean"] == found.models[row["weights"]].row(row["radius"], row["domain"]).mean
    different = [row for row in rows(folder, FLATNESS) if row["kind"] == "difference"]
    assert {(row["first"], row["second"]) for row in different} == {("swad", "best"), ("swa", "best")}

    monkeypatch.setattr("swad.testbed.measure.saved_run.SavedRun.images", lambda *_: pytest.fail("no image is needed"))
    again = run_flatness.run_local(open_run(folder), NAMES, COARSE)
    assert [row for one in again.models.values() for row in one.rows] == [
        row for one in found.models.values() for row in one.rows
    ]
    assert (folder / FLATNESS).read_text() == written


@pytest.mark.slow
def test_more_directions_and_more_weights_add_to_what_is_there(tiny_run, tmp_path):
    folder, fresh = copied(tiny_run, tmp_path / "grown"), copied(tiny_run, tmp_path / "fresh")
    run_flatness.run_local(open_run(folder), NAMES[:1], COARSE)
    more = run_flatness.FlatnessConfig(radii=COARSE.radii, n_directions=10, n_images=COARSE.n_images)
    grown = run_flatness.run_local(open_run(folder), NAMES[:2], more)
    whole = run_flatness.run_local(open_run(fresh), NAMES[:2], more)
    for name in NAMES[:2]:
        assert grown.models[name].rows == whole.models[name].rows
    # Asking for fewer than were measured takes what there is, and measures other weights in as many.
    fewer = run_flatness.run_local(open_run(folder), NAMES[:3], COARSE)
    assert [fewer.models[name].n_directions for name in NAMES[:3]] == [10, 10, 10]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "file", "fatal"), [("flatness", FLATNESS, 6), ("surface", SURFACE, 12)])
def test_killed_work_goes_on_to_the_same_rows(tiny_run, tmp_path, what, file, fatal):
    killed, whole = copied(tiny_run, tmp_path / "killed"), copied(tiny_run, tmp_path / "whole")
    script = HELPERS / "tiny_runs.py"
    process = run([script, killed, what, str(fatal)])
    assert process.returncode == -9, process.stderr
    text = (killed / file).read_text()
    assert text.endswith("half a li")
    kept = len(rows(killed, file))
    assert kept == fatal - 1
    measure(killed, what)
    measure(whole, what)
    assert len(rows(whole, file)) > kept
    assert rows(killed, file) == rows(whole, file)


def test_other_settings_stand_beside_each_other(tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    run_flatness.run_local(open_run(folder), ["swad"], COARSE)
    other = run_flatness.FlatnessConfig(radii=(1.0,), n_directions=4, n_images=20, normalize="filter")
    found = run_flatness.run_local(open_run(folder), ["swad"], other)
    keys = [row["key"] for row in rows(folder, FLATNESS) if row["kind"] == "settings"]
    assert len(set(keys)) == 2
    assert found.models["swad"].settings["normalize"] == "filter"
    assert found.models["swad"].radii == (1.0,)
    # What is asked for last is what is shown, whether it was measured just now or before.
    assert read_flatness(load_run(folder)).settings["normalize"] == "filter"
    run_flatness.run_local(open_run(folder), ["swad"], COARSE)
    assert read_flatness(load_run(folder)).settings["normalize"] == "sphere"


def test_parameters_that_are_left_alone_are_a_setting_of_their_own(tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    run_flatness.run_local(open_run(folder), ["swad"], COARSE)
    (key,) = (row["key"] for row in rows(folder, FLATNESS) if row["kind"] == "settings")
    settings = next(row for row in rows(folder, FLATNESS) if row["kind"] == "settings")
    assert not {"include", "exclude"} & set(settings)  # as before there were filters: what was measured then counts
    some = replace(COARSE, include=("head.*", "hidden.*"), exclude=("*.bias",))
    found = run_flatness.run_local(open_run(folder), ["swad"], some).models["swad"]
    state = open_run(folder).state("swad")
    assert found.settings["parameters"] == state["head.weight"].numel() + state["hidden.0.weight"].numel()
    last = [row for row in rows(folder, FLATNESS) if row["kind"] == "settings"][-1]
    assert last["key"] != key
    assert (last["include"], last["exclude"]) == (["head.*", "hidden.*"], ["*.bias"])
    alone = compare({"swad": open_run(folder).model("swad")}, image_losses(open_run(folder).images(20).by_domain),
                    COARSE.radii, 6, include=["head.weight", "hidden.0.weight"])  # fmt: skip
    assert [row.mean for row in found.rows if row.domain is None] == pytest.approx(
        [row.mean for row in alone.models["swad"].rows if row.domain is None], rel=1e-5
    )
    whole, part = (
        run_flatness.run_worst_case(
            open_run(folder), ["swad"], [0.1], FlatnessConfig(n_images=12, include=names), steps=1, restarts=0
        )
        for names in ((), ("head.bias",))
    )
    assert whole[0]["key"] != part[0]["key"]
    assert whole[0]["lower_bound"] > part[0]["lower_bound"]


def test_trials_share_the_targets_images_and_not_the_training_images(tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "first")
    run_flatness.run_local(open_run(folder), ["swad"], COARSE)
    again = tmp_path / "second"
    shutil.copytree(folder, again)
    config = json.loads((again / "config.json").read_text())
    config["config"]["data"]["trial"] = 1
    (again / "config.json").write_text(json.dumps(config))
    (again / "done.json").write_text("{}")  # without the checksum of the settings
    one, two = (read_flatness(load_run(path)) for path in (folder, again))
    for side, shared in (("seen", 1), ("unseen", 2)):
        first, second = one.curves[side][0], two.curves[side][0]
        # Trials share the directions, and on the unseen side the target's images, too.
        assert len(first.contributions.keys() & second.contributions.keys()) == shared
        (low, high), (_, alone) = (average_curves(some).at(5.0)[1:] for some in ([first, second], [first, first]))
        assert (high < alone) == (side == "seen")
        assert low < high


def test_weights_that_changed_are_refused(tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    run_flatness.run_local(open_run(folder), ["swad"], COARSE)
    quick = {"config": FlatnessConfig(n_images=12), "steps": 1, "restarts": 0}
    run_flatness.run_worst_case(open_run(folder), ["swad"], [0.1], **quick)
    (folder / "weights" / "swad.safetensors").write_bytes((folder / "weights" / "best.safetensors").read_bytes())
    changed = r"swad.safetensors changed since .*flatness.jsonl was written: remove"
    with pytest.raises(RunError, match=changed):
        run_flatness.run_local(open_run(folder), ["swad"], COARSE)
    with pytest.raises(RunError, match=changed):  # also where all that was asked for is there
        run_flatness.run_worst_case(open_run(folder), ["swad"], [0.1], **quick)
    (folder / "weights" / "swa.safetensors").unlink()
    with pytest.raises(RunError, match=r"swa.safetensors is missing"):
        run_flatness.run_local(open_run(folder), ["swa"], COARSE)


@pytest.mark.gpu
def test_on_a_gpu_graphs_give_what_single_calls_give(tiny_run, tmp_path, monkeypatch):
    one, two = copied(tiny_run, tmp_path / "graph"), copied(tiny_run, tmp_path / "calls")
    graph = run_flatness.run_local(open_run(one), NAMES, COARSE, device="cuda")
    monkeypatch.setattr(run_flatness, "captured", lambda loss_fn, model: loss_fn)
    calls = run_flatness.run_local(open_run(two), NAMES, COARSE, device="cuda")
    for name in NAMES:
        for here, there in zip(graph.models[name].rows, calls.models[name].rows, strict=True):
            assert here.mean == pytest.approx(there.mean, rel=1e-3, abs=1e-4)
    assert run_surface.run_surface(open_run(one), steps=3, n_images=20, device="cuda").points["1"].loss > 0


# --- worst case, curvature, bound -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_worst_case_is_kept_and_is_at_least_the_loss(tiny_run, tmp_path, monkeypatch):
    folder = copied(tiny_run, tmp_path / "run")
    quick = {"config": FlatnessConfig(n_images=15), "steps": 3, "restarts": 1}
    found = run_flatness.run_worst_case(open_run(folder), ["best", "swad"], [0.02, 0.2], **quick)
    assert len(found) == 8
    for row in found:
        assert row["lower_bound"] >= row["loss"]
        assert row["measure"] == "loss" or 0 <= row["lower_bound"] <= 1
    by_radius = [row["lower_bound"] for row in found if row["weights"] == "swad" and row["measure"] == "loss"]
    assert by_radius == sorted(by_radius)
    monkeypatch.setattr("swad.testbed.measure.saved_run.SavedRun.images", lambda *_: pytest.fail("no image is needed"))
    assert run_flatness.run_worst_case(open_run(folder), ["swad"], [0.02, 0.2], **quick) == found[4:]


@pytest.mark.slow
def test_curvature_of_a_run(tiny_run, tmp_path):
    pytest.importorskip("curvlinops")
    folder = copied(tiny_run, tmp_path / "run")
    quick = {"config": FlatnessConfig(n_images=10), "n_eigenvalues": 1, "trace_vectors": 2}
    found = run_flatness.run_curvature(open_run(folder), ["swad"], **quick)
    assert [row["domain"] for row in found] == ["board", "clutter", "outline", "seen", "paper", "unseen"]
    assert all(row["eigenvalues"][0] > 0 for row in found)
    assert run_flatness.run_curvature(open_run(folder), ["swad"], **quick) == found


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
    assert run.eval_group_size == run.batch_size(torch.device("cpu")) == 8
    images = run.images(20)
    assert {len(labels) for _, labels in images.by_domain.values()} == {16}
    _store_results_without_mixed_groups(run)
    flat = run_flatness.run_local(run, ["best"], COARSE).models["best"]
    model = run.model("best")
    pictures, labels = images.by_domain["paper"]
    with torch.no_grad():
        groups = [functional.cross_entropy(model(pictures[i : i + 8]), labels[i : i + 8]).item() for i in (0, 8)]
    assert flat.loss["paper"] == pytest.approx(sum(groups) / 2, rel=1e-5)
    run_flatness.run_curvature(run, ["best"], FlatnessConfig(n_images=20), n_eigenvalues=1, trace_vectors=2)
    run_surface.run_surface(run, ["best", "last"], [], steps=2, n_images=20)
    stored = [row for name in (FLATNESS, SURFACE) for row in rows(run.path, name) if row["kind"] == "settings"]
    assert [row.get("mixed_groups") for row in stored] == [None, 8, 8, 8]


def _store_results_without_mixed_groups(run: SavedRun) -> None:
    """Store a wrong result under the settings that identified results before the images of a group were mixed."""
    settings = COARSE.settings(run, torch.device("cpu"))
    wrong = run_flatness.run_local(run, ["best"], COARSE).models["best"].to_row("best")
    (run.path / FLATNESS).unlink()
    with RowFile(run.path, FLATNESS) as file:
        key = file.add_settings({name: value for name, value in settings.items() if name != "mixed_groups"})
        file.append({"key": key, **wrong, "loss": dict.fromkeys(wrong["loss"], 99.0)})


@pytest.mark.parametrize("n", [None, 40])
@pytest.mark.parametrize("algorithm", ["arm", "mtl", "erm"])
def test_groups_of_images_mix_the_classes(tmp_path, monkeypatch, algorithm, n):
    """The target of a dataset in folders is ordered by class, and a group must not hold one class."""
    digits = benchmarks.load("digits")
    orders = [np.argsort(domain.labels, kind="stable") for domain in digits.domains]
    by_class = [
        replace(domain, labels=domain.labels[order], images=domain.images[order])
        for domain, order in zip(digits.domains, orders, strict=True)
    ]
    monkeypatch.setattr(benchmarks, "load", lambda *args, **options: replace(digits, domains=tuple(by_class)))
    run = SavedRun(tmp_path, tiny(tmp_path, algorithm=algorithm, hyperparameters={"batch_size": 8}), {})
    labels = run.images(n).by_domain["paper"][1]
    repeated = run.images(n).by_domain["paper"][1]
    assert labels.equal(repeated)
    if algorithm == "erm":
        assert labels.equal(labels.sort().values)
        return
    assert len(labels) == {None: 448, 40: 40}[n]
    groups = [len(set(group.tolist())) for group in labels.split(8)]
    assert min(groups) >= 3
    assert len(set(labels.tolist())) == 10


# --- the file -------------------------------------------------------------------------------------------------------


def test_one_process_writes_at_a_time(tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    with RowFile(folder, FLATNESS), pytest.raises(RecordError, match="is being written by process"):
        run_flatness.run_local(open_run(folder), ["swad"], COARSE)
    run_flatness.run_local(open_run(folder), ["swad"], COARSE)  # and was let go
