"""Weights of real runs merged, scored and written as the benchmark reads them."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from helpers.tiny_runs import tiny
from swad.merging.checkpoints import name_of
from swad.merging.merge import take_greedily
from swad.merging.weighted_mean import weighted_mean
from swad.testbed.data.benchmarks import digits
from swad.testbed.measure import merge_runs
from swad.testbed.measure.saved_run import open_run
from swad.testbed.models.weight_files import NetworkError, read_safetensors
from swad.testbed.training.export import load_predictor, read_card
from swad.testbed.training.loop import train
from swad.testbed.training.run_dir import RunError

pytest.importorskip("sklearn")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of trial 0 with batch norms that learn, with snapshots, and one of another target."""
    root = tmp_path_factory.mktemp("runs")
    images = tuple(
        dataclasses.replace(one, labels=one.labels[:150], images=one.images[:150]) for one in digits.render()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "render", lambda: images)
        for name, changes in {"a": {"seed": 0}, "b": {"seed": 1}, "other": {"target": "board"}}.items():
            options = {"network": "test_resnet", "weights": "random", "freeze_bn": False, "averages": ("swa",)}
            options |= {"keep_segments": name == "a"}
            train(tiny(root / name, steps=20, snapshots=(10, 15), **options, **changes))
        yield root


def test_weights_of_runs_are_found_in_the_order_of_the_paths(runs, tmp_path):
    found = merge_runs.find_checkpoints([runs / "b", runs / "a"], ["snapshots", "last"])
    names = ("step-000010", "step-000015", "last")
    assert found.files == [runs / run / "weights" / f"{name}.safetensors" for run in "ba" for name in names]
    assert [run.path for run in found.runs] == [runs / "b", runs / "a"]
    other = tmp_path / "other.pt"
    mixed = merge_runs.find_checkpoints([other, runs / "a"], ["swa"])
    assert mixed.files == [other, runs / "a" / "weights" / "swa.safetensors"]
    with pytest.raises(RunError, match=r"--greedy needs runs, whose images it uses, got .*other\.pt"):
        mixed.require_runs("--greedy")


def test_the_score_is_the_runs_own_validation_accuracy(runs):
    run = open_run(runs / "a")
    score = merge_runs.RunScorer(run, CPU, workers=0)
    values = [
        record["value"]
        for record in map(json.loads, (runs / "a" / "records.jsonl").read_text().splitlines())
        if record.get("split") == "out" and record.get("metric") == "accuracy" and record.get("average") == "last"
        and record.get("domain") != "paper"
    ]  # fmt: skip
    assert len(values) == 3
    assert len(set(values)) > 1, "a mean of equal numbers would hide which one is taken"
    assert score(run.state("last")) == pytest.approx(sum(values) / 3)


def test_greedy_on_runs_takes_the_better_and_never_ends_below_it(runs):
    files = merge_runs.find_checkpoints([runs / "a", runs / "b"], ["10", "last"]).files
    score = merge_runs.RunScorer(open_run(runs / "a"), CPU, workers=0)
    steps = []
    chosen = take_greedily(files, score, steps.append)
    merged = weighted_mean(chosen, [1.0] * len(chosen))
    assert score(merged) == max(step.score for step in steps if step.taken)
    assert score(merged) >= max(score(read_safetensors(file)) for file in files)


def test_batch_norms_are_those_of_the_runs_training_images(runs):
    run = open_run(runs / "a")
    files = merge_runs.find_checkpoints([runs / "a", runs / "b"], ["last"]).files
    merged = weighted_mean(files, [1, 1])
    estimate = merge_runs.build_bn_estimate(run, CPU, 0)
    updated = merge_runs.with_batch_norms(merged, run, CPU, estimate)
    changed = {name for name in merged if not updated[name].equal(merged[name])}
    assert {name.rpartition(".")[2] for name in changed} <= {"running_mean", "running_var", "num_batches_tracked"}
    assert any(name.endswith("running_mean") for name in changed)
    plain, with_estimate = (merge_runs.RunScorer(run, CPU, 0, each) for each in (None, estimate))
    assert with_estimate(merged) == plain(updated)
    # For the average of a run, the estimate is the one that the run itself made at its end.
    again = merge_runs.with_batch_norms(run.state("swa"), run, CPU, estimate)
    for name, tensor in run.state("swa").items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_file_is_one_that_the_benchmark_loads(runs, tmp_path):
    files = merge_runs.find_checkpoints([runs / "a", runs / "b"], ["last"]).files
    merged = weighted_mean(files, [1, 3])
    written = merge_runs.save_merged(tmp_path / "m.safetensors", merged, files, [1, 3])
    assert written == [tmp_path / "m.safetensors", tmp_path / "m.md"]
    model = load_predictor(written[0]).model
    assert all(tensor.equal(merged[name]) for name, tensor in model.state_dict().items())
    card = read_card(written[0])
    assert [part["coefficient"] for part in card["merged"]] == [0.25, 0.75]
    assert card["description"] == f"Merged from 25 % {files[0]}, 75 % {files[1]}"
    assert card["scores"] is None
    assert "Merged from 25 %" in written[1].read_text()


def test_segments_are_merged_as_the_means_of_their_updates(runs, tmp_path):
    run = open_run(runs / "a")
    files = sorted((runs / "a" / "segments").iterdir())
    found = merge_runs.find_checkpoints([runs / "a"], ["segments"])
    assert [name_of(each) for each in found.files] == list(map(str, files))
    stored = [torch.load(file, weights_only=True) for file in files]
    assert [(segment["first"], segment["last"]) for segment in stored] == [(1, 10), (11, 20)]
    merged = weighted_mean(found.files, [1, 3])
    assert set(merged) == set(run.state("last"))
    first, second = (segment["sum"] for segment in stored)
    for name in first:
        torch.testing.assert_close(merged[name], (first[name] / 10 + 3 * second[name] / 10) / 4)
    counters = [name for name in merged if name.endswith("num_batches_tracked")]
    assert counters
    assert all(merged[name].equal(stored[-1]["buffers"][name]) for name in counters)
    (one,) = merge_runs.find_checkpoints([files[-1]], ["last"]).files
    alone = weighted_mean([one], [1])
    for name in second:
        torch.testing.assert_close(alone[name], second[name] / 10)
    written = merge_runs.save_merged(tmp_path / "m.safetensors", merged, found.files, [1, 3])
    model = load_predictor(written[0]).model
    assert all(tensor.equal(merged[name]) for name, tensor in model.state_dict().items())
    assert read_card(written[0])["merged"][-1]["checkpoint"] == str(files[-1])
    score = merge_runs.RunScorer(run, CPU, workers=0)
    assert take_greedily(found.files, score)


def test_frozen_tensors_of_segments_are_those_of_the_last_weights(runs):
    last, file = open_run(runs / "a").state("last"), sorted((runs / "a" / "segments").iterdir())[0]
    read = merge_runs.read_segment(file)
    name = next(iter(read.sum))
    without = dataclasses.replace(read, sum={key: value for key, value in read.sum.items() if key != name})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_runs, "read_segment", lambda file: without)
        segment = merge_runs.SegmentMean(file, open_run(runs / "a"))
    assert segment[name].equal(last[name])
    assert set(segment) == set(last)


def test_what_must_not_be_merged(runs, tmp_path):
    with pytest.raises(RunError, match="must hold out the same target of the same dataset"):
        merge_runs.find_checkpoints([runs / "a", runs / "other"], ["last"])
    with pytest.raises(RunError, match="has no weights 'swad'; it has"):
        merge_runs.find_checkpoints([runs / "a"], ["swad"])
    with pytest.raises(RunError, match="has no segments: train it with --keep-segments"):
        merge_runs.find_checkpoints([runs / "b"], ["segments"])
    bare = tmp_path / "bare"
    train(tiny(bare, steps=10, snapshots=(), averages=()))
    with pytest.raises(RunError, match="has no snapshots: train it with --snapshots"):
        merge_runs.find_checkpoints([bare], ["snapshots"])
    with pytest.raises(RunError, match="trained with frozen batch norms, which need no new statistics"):
        merge_runs.build_bn_estimate(open_run(bare), CPU, 0)
    file = bare / "weights" / "last.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(NetworkError, match="does not match its checksum, so it is damaged"):
        merge_runs.find_checkpoints([bare], ["last"])
