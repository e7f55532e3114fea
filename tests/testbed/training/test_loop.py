"""Whole runs on the digits: what they leave behind, and their options."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from helpers.runs import RecordingCallback, cached_config, interrupt_at, require_same, short, values, weights
from swad.testbed.results import training_curves
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.records import read_records
from swad.testbed.results.runs import load_run
from swad.testbed.training import evaluation
from swad.testbed.training.config import ResolvedConfig, RunConfig
from swad.testbed.training.loop import RunError, RunInterrupted, train
from swad.testbed.training.resolve import resolve
from swad.util.images import DataError


@pytest.mark.slow
def test_the_same_seed_gives_the_same_records_and_weights(tmp_path, finished_run):
    before = torch.random.get_rng_state()
    torch.set_num_threads(2)  # a run with the small network uses one
    train(short(tmp_path / "run"))
    assert before.equal(torch.random.get_rng_state())
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    require_same(finished_run, tmp_path / "run")
    other = train(short(tmp_path / "other", seed=1))
    assert values(tmp_path / "other") != values(finished_run)
    assert other.config.seed == 1


def test_files_of_a_finished_run(finished_run):
    assert sorted(path.name for path in finished_run.iterdir()) == [
        "config.json",
        "done.json",
        "predictions.npz",
        "records.jsonl",
        "run.lock",
        "weights",
    ]
    run = load_run(finished_run)
    assert run.finished
    assert run.targets == ("paper",)
    assert run.config["hyperparameters"] == {"lr": 0.08, "batch_size": 8, "weight_decay": 0.0, "dropout": 0.0}
    assert "output" not in run.config
    assert ResolvedConfig.from_json(json.loads((finished_run / "config.json").read_text()), finished_run) == resolve(
        short(finished_run)
    )


def test_records_contain_what_selection_and_report_read(finished_run):
    run = load_run(finished_run)
    sources = {"board", "clutter", "outline"}
    (curves,) = training_curves.source_curves([run], "loss")
    assert set(curves) == sources
    assert list(curves["board"]) == [4, 8, 12, 16, 20, 24]
    means = training_curves.mean_curve(curves.values())
    steps, mean = list(means), list(means.values())
    seen = {r.step: r.value for r in read_records(run.path) if r.metric == "valley_loss"}
    assert [seen[step] for step in steps] == pytest.approx(mean)
    labels = {"best", "last", "swad", "swa", "ema"}
    for split in ("in", "out", "full"):
        rows = [
            r for r in read_records(run.path) if r.domain == "paper" and r.split == split and r.metric == "accuracy"
        ]
        assert {r.average for r in rows} == labels
        assert {r.step for r in rows} == {24}
    for label in labels:
        out = {
            r.domain
            for r in read_records(run.path)
            if r.average == label and r.split == "out" and r.metric == "accuracy"
        }
        assert out == {*sources, "paper"}
    assert list(training_curves.valleys([run])[0]) == ["swad"]
    valley = training_curves.valleys([run])[0]["swad"]
    assert valley.start is not None
    assert valley.n_averaged == valley.end - valley.start + 1
    for metric in ("seconds_total", "seconds_per_step", "seconds_evaluation"):
        assert training_curves.final_values([run], metric)[0] > 0


@pytest.mark.all_digits
def test_golden_losses(tmp_path):
    """A change here changes results: add it to the changelog."""
    run_dir = train(short(tmp_path / "run", steps=16)).run_dir
    losses = [r.value for r in read_records(run_dir) if r.metric == "valley_loss" and r.average is None]
    # Rounding differs between machines and grows with every step, so later losses are not compared.
    assert losses[:4] == pytest.approx([2.35311, 2.33323, 2.30999, 2.29899], abs=5e-4)


@pytest.mark.slow
def test_the_target_is_not_read_before_the_end(tmp_path, monkeypatch):
    opened: list[tuple[str, int]] = []
    step = 0
    real = evaluation.EvalLoader

    class Spy(real):
        def __init__(self, part, *args, **options):
            opened.append((part.name, step))
            super().__init__(part, *args, **options)

    monkeypatch.setattr(evaluation, "EvalLoader", Spy)

    class Count(RecordingCallback):
        def on_step(self, now, loss):
            nonlocal step
            step = now

    train(short(tmp_path / "run"), callback=Count())
    assert {at for name, at in opened if name == "paper"} == {24}
    opened.clear()
    train(short(tmp_path / "asked", target_every_evaluation=True), callback=Count())
    assert min(at for name, at in opened if name == "paper") == 4
    rows = [r for r in read_records(tmp_path / "asked") if r.domain == "paper" and r.average is None]
    assert sorted({r.step for r in rows}) == [4, 8, 12, 16, 20, 24]
    # Evaluating the target changes nothing else.
    same = [row for row in values(tmp_path / "asked") if row[2] != "paper" or row[6] is not None]
    assert same == values(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("input_pipeline", ["torchvision", "gpu"])
def test_the_images_of_the_target_change_nothing_but_its_own_scores(tmp_path, noise_folder, input_pipeline):
    from PIL import Image

    options = {"input_pipeline": input_pipeline, "target_every_evaluation": True, "steps": 4, "workers": 0}
    train(cached_config(noise_folder, tmp_path / "one", **options))
    for path in (noise_folder / "a").rglob("*.png"):
        Image.open(path).transpose(Image.Transpose.ROTATE_90).save(path)
    train(cached_config(noise_folder, tmp_path / "two", **options, cache=tmp_path / "other-cache"))
    one, two = ([row for row in values(tmp_path / name) if row[2] != "a"] for name in ("one", "two"))
    assert one == two
    assert values(tmp_path / "one") != values(tmp_path / "two")
    for name, tensors in weights(tmp_path / "one").items():
        other = weights(tmp_path / "two")[name]
        assert all(tensor.equal(other[key]) for key, tensor in tensors.items())


def test_the_reference_schedule_evaluates_one_step_later(tmp_path):
    train(short(tmp_path / "run", schedule="reference", averages=("swad", "swa")))
    run = load_run(tmp_path / "run")
    steps = list(training_curves.source_curves([run], "loss")[0]["board"])
    assert steps == [1, 5, 9, 13, 17, 21, 25]
    done = json.loads((tmp_path / "run" / "done.json").read_text())
    assert done["steps"] == 25
    assert done["ranges"]["swa"]["spans"] == "25-25"


def test_the_last_step_is_always_evaluated(tmp_path):
    train(short(tmp_path / "run", steps=10, averages=("swa",)))
    assert list(training_curves.source_curves([load_run(tmp_path / "run")], "loss")[0]["board"]) == [4, 8, 10]


def test_a_three_way_split_has_test_scores(tmp_path):
    result = train(short(tmp_path / "run", split="60/20/20", averages=("ema",)))
    assert set(result.scores["ema"]["paper"]) == {"in", "out", "test", "full"}
    assert set(result.scores["ema"]["board"]) == {"out", "test"}


def test_two_targets_are_both_held_out(tmp_path):
    result = train(short(tmp_path / "run", target=("paper", "board"), averages=("ema",)))
    assert load_run(tmp_path / "run").targets == ("paper", "board")
    assert set(result.scores["ema"]) == {"clutter", "outline", "paper", "board"}


@pytest.mark.all_digits
@pytest.mark.slow
def test_swad_finds_both_ends_of_the_demos_valley(tmp_path):
    options = {"dataset": "digits", "target": "paper", "averages": ("swad",), "report_live": False}
    result = train(RunConfig.from_options(output=tmp_path / "run", **options))
    found = result.ranges["swad"]
    assert found["phase"] == "stopped"
    assert 60 <= found["start_step"] < found["end_step"] < result.steps < 600


def test_a_validation_subsample_changes_the_losses_but_not_the_trajectory(tmp_path, finished_run):
    config = short(tmp_path / "run", validation_subsample=3)
    with pytest.raises(RunInterrupted):
        train(config, callback=interrupt_at(6))
    result = train(config)
    done = json.loads((finished_run / "done.json").read_text())
    assert result.scores["last"] == done["scores"]["last"], "the final evaluation uses all images"
    losses, full_losses = (
        [r.value for r in read_records(run) if r.metric == "valley_loss"] for run in (tmp_path / "run", finished_run)
    )
    assert len(losses) == len(full_losses) == 6
    assert not set(losses) & set(full_losses)


def test_a_run_with_most_other_options_finishes(tmp_path):
    train(
        short(
            tmp_path / "run",
            steps=4,
            precision="bf16",
            clip=0.1,
            deterministic=True,
            log=("tensorboard",),
            augment_validation=True,
            averages=("swad",),
        )
    )
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("averages", [(), ("swad", "ema")])
def test_a_training_that_diverged_stops_whatever_is_averaged(tmp_path, averages):
    callback = RecordingCallback()
    settings = {"hyperparameters": {"lr": 1e30, "batch_size": 8}, "averages": averages}
    rule = r"^the training diverged: at step 4 the training loss is .*; lower lr \(it is 1e\+30\).*$"
    with pytest.raises(RunError, match=rule):
        train(short(tmp_path / "run", **settings), callback=callback)
    assert callback.steps[-1] == 4
    assert not math.isfinite([r.value for r in read_records(tmp_path / "run") if r.metric == "valley_loss"][-1])


def test_a_fall_of_the_validation_accuracy_below_half_is_reported_once(tmp_path, monkeypatch):
    accuracies, callback = iter([0.2, 0.8, 0.41, 0.39, 0.38, 0.9]), RecordingCallback()
    validate = evaluation.Evaluator.validation_scores

    def scores(evaluator, model):
        accuracy = next(accuracies)
        return {
            domain: replace(score, correct=accuracy * score.n) for domain, score in validate(evaluator, model).items()
        }

    monkeypatch.setattr(evaluation.Evaluator, "validation_scores", scores)
    train(short(tmp_path / "run", averages=()), callback=callback)
    (message,) = [message for message in callback.messages if "diverge" in message]
    assert message.startswith("warning: the validation accuracy fell below half of its best, 80.0 % at step 8")


def test_an_average_that_skips_losses_that_are_not_finite_lets_the_training_end(tmp_path):
    callback = RecordingCallback()
    hyperparameters, averages = {"lr": 1e30, "batch_size": 8}, ("swad:nonfinite=skip",)
    result = train(short(tmp_path / "run", hyperparameters=hyperparameters, averages=averages), callback=callback)
    assert result.steps == 24
    assert any("skip this evaluation" in message for message in callback.messages)


def test_too_few_evaluations_are_reported_at_the_start_and_at_the_end(tmp_path):
    callback = RecordingCallback()
    averages = ("swad:n_converge=2", "swad:as=late,n_converge=3", "ema")
    result = train(short(tmp_path / "run", averages=averages, steps=4, evaluate_every=2), callback=callback)
    early = [message for message in callback.messages if "needs" in message]
    assert early == [
        "late needs 3 evaluations to find its start, but 4 steps have 2: "
        "train longer or evaluate more often: evaluate_every=1 (--evaluate-every)"
    ]
    assert any(warning.startswith("the validation loss never converged for late, so it") for warning in result.warnings)
    train(short(tmp_path / "shorter", averages=("swad",), steps=2, evaluate_every=1), callback=callback)
    assert "swad needs 3 evaluations to find its start, but 2 steps have 2: train longer" in callback.messages


@pytest.mark.all_digits
def test_an_average_that_starts_too_early_is_reported(tmp_path, finished_run):
    """The learning rate is so small that the loss stays where it was, above chance."""
    callback = RecordingCallback()
    settings = {"hyperparameters": {"batch_size": 8, "lr": 1e-6}, "averages": ("swad:n_converge=2",)}
    result = train(short(tmp_path / "run", **settings), callback=callback)
    assert any("not below chance (2.303)" in warning for warning in result.warnings)
    assert {f"warning: {warning}" for warning in result.warnings} <= set(callback.messages)
    problems = find_problems([load_run(tmp_path / "run")])
    assert any("not below chance (2.303)" in problem for problem in problems)
    assert not any("below chance" in problem for problem in find_problems([load_run(finished_run)]))


def test_an_error_in_the_final_report_keeps_the_finished_training(tmp_path, finished_run, monkeypatch):
    final_scores, calls = evaluation.Evaluator.final_scores, []

    def unreadable(*arguments):
        calls.append(1)
        if len(calls) == 3:  # two models are evaluated and recorded by then
            raise DataError("cannot decode image x.jpg")
        return final_scores(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation.Evaluator, "final_scores", unreadable)
        with pytest.raises(DataError):
            train(short(tmp_path / "run", checkpoint_every=None))
    callback = RecordingCallback()
    train(short(tmp_path / "run"), callback=callback)
    assert callback.events == ["start 24/24", "end"]
    require_same(finished_run, tmp_path / "run")


@pytest.mark.slow
def test_an_image_folder_with_a_timm_network(tmp_path, image_folder):
    timm = pytest.importorskip("timm")
    options = {
        "dataset": "folder",
        "data_dir": image_folder,
        "target": "snow",
        "network": "test_resnet",
        "weights": "random",
        "freeze_bn": True,
        "steps": 3,
        "evaluate_every": 1,
        "hyperparameters": {"batch_size": 2, "lr": 1e-4},
        "averages": ("swad", "ema"),
    }
    train(short(tmp_path / "plain", **options, workers=0))
    with pytest.raises(RunInterrupted, match="from step 2"):
        train(short(tmp_path / "read", **options, workers=1), callback=interrupt_at(2))
    existing = next((image_folder / "snow").rglob("*.png"))
    added = existing.with_name("new.png")
    added.write_bytes(existing.read_bytes())
    with pytest.raises(RunError, match=r"the data changed since .* \(snow: \d+ images then, \d+ now\): restore"):
        train(short(tmp_path / "read", **options, workers=1))
    added.unlink()
    train(short(tmp_path / "read", **options, workers=1))
    require_same(tmp_path / "plain", tmp_path / "read")
    for tensors in weights(tmp_path / "read").values():
        timm.create_model("test_resnet", num_classes=2).load_state_dict(tensors, strict=True)
    first = timm.create_model("test_resnet", num_classes=2).state_dict()
    for name, tensor in weights(tmp_path / "read")["swad"].items():
        if "running" in name:
            assert tensor.equal(first[name]), "frozen statistics must not move"
    assert 'timm.create_model("test_resnet", num_classes=2)' in (tmp_path / "read/weights/swad.md").read_text()
    with pytest.raises(DataError, match="has no domain 'rain'"):
        train(short(tmp_path / "rain", **{**options, "target": "rain"}))


@pytest.mark.slow
def test_a_run_on_cached_images_resumes_to_the_same_bits_and_notices_changed_images(noise_folder, tmp_path):
    image = pytest.importorskip("PIL.Image")
    result = train(cached_config(noise_folder, tmp_path / "whole"))
    assert result.notes[0] == "engine eager, gpu input pipeline, fp32"
    assert any("were resized to 256 × 256" in note for note in result.notes)
    with pytest.raises(RunInterrupted):
        train(cached_config(noise_folder, tmp_path / "cut"), callback=interrupt_at(5))
    train(cached_config(noise_folder, tmp_path / "cut"))
    require_same(tmp_path / "whole", tmp_path / "cut")
    image.new("RGB", (60, 44)).save(noise_folder / "b" / "dark" / "3.png")
    callback = RecordingCallback()
    train(cached_config(noise_folder, tmp_path / "again"), callback=callback)
    assert any("changed" in message for message in callback.messages)
