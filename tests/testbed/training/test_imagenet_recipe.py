"""The imagenet recipe: its learning rates, its shared trajectory, exact resume, and what its averages are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.batches import batch_at
from helpers.image_files import write_image
from helpers.runs import RecordingCallback, crash_at, interrupt_at, require_same, values
from helpers.tiny_algorithms import batch_for, make
from swad.tensors.batch_norms import batch_norms
from swad.testbed.algorithms.base import StepContext
from swad.testbed.data.domains import ArrayDomain, ImageSpec
from swad.testbed.data.loaders import Batch
from swad.testbed.data.splits import DomainSplit, Sources, hold_out
from swad.testbed.models import networks
from swad.testbed.training import loop
from swad.testbed.training.callback import make_display
from swad.testbed.training.config import ConfigError, RunConfig
from swad.testbed.training.dataset import image_spec, load_dataset
from swad.testbed.training.distributed import Dist
from swad.testbed.training.loop import RunError, RunInterrupted, train
from swad.testbed.training.recipes import averaging_plan, get_recipe
from swad.testbed.training.resolve import fill_defaults, resolve
from swad.testbed.training.run_dir import RunDir
from swad.testbed.training.state import TrainingState, build_algorithm, build_averages, build_schedulers

RECIPE = get_recipe("imagenet")


@pytest.fixture(scope="session")
def tree(tmp_path_factory) -> Path:
    """16 training and 4 validation images of two classes."""
    root = tmp_path_factory.mktemp("imagenet")
    for split, n in (("train", 8), ("val", 2)):
        for c, name in enumerate(("n01", "n02")):
            for i in range(n):
                write_image(root / split / name / f"{i}.JPEG", 30 + i, 36, seed=100 * c + 10 * n + i)
    return root


def short(tree: Path, output: Path, **changes) -> RunConfig:
    """5 epochs of 4 steps on 2 x 2 images; the last epoch is averaged."""
    settings = {
        "dataset": "imagenet", "target": "none", "data_dir": tree, "network": "small", "image_size": 28, "workers": 0,
        "epochs": 5, "micro_batch": 2, "hyperparameters": {"batch_size": 4, "lr": 3.0},
        "averages": ("without_opt_overfit:as=swad",),
    }  # fmt: skip
    return RunConfig.from_options(output=output, **{**settings, **changes})


@pytest.fixture(scope="module")
def runs(tree, tmp_path_factory) -> dict[str, Path]:
    """The three runs of the recipe by learning rate; that of SWAD keeps the weights of its window."""
    output = tmp_path_factory.mktemp("runs") / "none-0"
    snapshots = {"snapshots": (17, 18, 19, 20)}
    configs = {config.lr_schedule: config for config in RECIPE.trainings(short(tree, output, averages=()))}
    for name, config in configs.items():
        train(config.replace(**snapshots) if name == "constant" else config)
    return {name: config.output for name, config in configs.items()}


def test_the_branch_shares_its_trunk(tree, tmp_path, runs):
    until = [row for row in values(runs["constant"]) if row[1] <= 16]
    assert until == [row for row in values(runs["cyclic"]) if row[1] <= 16]
    assert {row[1] for row in until} == {4, 8, 12, 16}
    # A training from the first step gives the same, so nothing of the trunk but its state is used.
    alone = short(tree, tmp_path / "alone", lr_schedule="cyclic", averages=("swa",), report_live=False)
    seen = RecordingCallback()
    train(alone, callback=seen)
    assert seen.steps == list(range(1, 21))
    require_same(runs["cyclic"], tmp_path / "alone")
    branch = alone.replace(output=tmp_path / "branch", branch_from=runs["constant"])
    seen = RecordingCallback()
    train(branch, callback=seen)
    assert seen.steps == [17, 18, 19, 20]


def test_a_branch_is_announced_as_one(tree, tmp_path, runs, capsys):
    branch = short(tree, tmp_path / "branch", lr_schedule="cyclic", averages=("swa",), branch_from=runs["constant"])
    config = resolve(branch)
    display = make_display(1).of_run("none-0")
    for step in (16, 18):  # from the trunk's checkpoint, and from one of its own
        display.on_start(config, 20, step)
    display.on_start(resolve(branch.replace(branch_from=None)), 20, 16)
    assert capsys.readouterr().out.splitlines() == [
        f"none-0: branches from {runs['constant']} after step 16 of 20",
        "none-0: resumes after step 18 of 20",
        "none-0: resumes after step 16 of 20",
    ]


def test_a_branch_has_the_settings_of_its_trunk(tree, tmp_path, runs):
    options = {"lr_schedule": "cyclic", "averages": ("swa",), "report_live": False, "branch_from": runs["constant"]}
    branch = short(tree, tmp_path / "branch", **options)
    with pytest.raises(RunError, match=r"in its learning rate and averages only, but seed was \d+, now 5"):
        train(branch.replace(seed=5))
    with pytest.raises(RunError, match=r"in its learning rate and averages only, but lr was 3\.0, now 2\.0"):
        train(branch.replace(hyperparameters={"batch_size": 4, "lr": 2.0}))
    with pytest.raises(RunError, match="averages updates before 16, where this trajectory branches off"):
        train(branch.replace(averages=("ema",)))
    with pytest.raises(RunError, match=r"kept a checkpoint after 80 %, got .*decay: train it first"):
        train(branch.replace(branch_from=runs["decay"]))
    complete = {"report_live": True, "target_every_evaluation": True, "snapshots": (16, 20), "keep_segments": True}
    for name, value in complete.items():
        with pytest.raises(RunError, match=rf"^{name} would lack the first 16 steps, which .* trained without"):
            train(branch.replace(**{name: value}))
    with pytest.raises(RunError, match=r"^snapshots, keep_segments would lack .*: turn them off, or drop branch_from$"):
        train(branch.replace(snapshots=(16,), keep_segments=True))


def test_a_run_killed_where_it_branches_can_be_branched_from(tree, tmp_path, monkeypatch):
    config = short(tree, tmp_path / "trunk", lr_schedule="constant", checkpoint_every=16)
    save = RunDir.save_checkpoint

    def save_and_die(run_dir, state, *name):
        save(run_dir, state, *name)
        if not name:
            raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(RunDir, "save_checkpoint", save_and_die)
        train(config)
    train(config)
    branch = config.replace(output=tmp_path / "branch", lr_schedule="cyclic", averages=("swa",))
    seen = RecordingCallback()
    train(branch.replace(branch_from=tmp_path / "trunk"), callback=seen)
    assert seen.steps == [17, 18, 19, 20]


def test_all_runs_of_the_recipe_have_the_requested_snapshots(tree, tmp_path):
    common = short(tree, tmp_path / "none-0", averages=(), snapshots=(5, 18), keep_segments=True)
    for config in RECIPE.trainings(common):
        result = train(config)
        assert all((config.output / file).exists() for file in result.weights.values())
        assert {"step-000005", "step-000018"} <= set(result.weights)
    shared = [load_file(tmp_path / f"none-0-{name}/weights/step-000005.safetensors") for name in ("constant", "cyclic")]
    assert all(tensor.equal(shared[1][name]) for name, tensor in shared[0].items())


def test_momentum_is_that_of_the_recipes_sgd(tree, tmp_path):
    config = short(tree, tmp_path / "run", momentum=0.5)
    assert resolve(config).momentum == 0.5
    with pytest.raises(ConfigError, match=r"momentum is for the optimizer sgd, got 0\.5 with adam: set optimizer"):
        resolve(config.replace(optimizer="adam"))


def test_swad_is_the_mean_of_the_iterates(runs):
    weights = runs["constant"] / "weights"
    iterates = [load_file(weights / f"step-{step:06d}.safetensors") for step in (17, 18, 19, 20)]
    average = load_file(weights / "swad.safetensors")
    for name, value in average.items():
        torch.testing.assert_close(value, torch.stack([iterate[name] for iterate in iterates]).mean(0))
    assert not average["head.weight"].equal(iterates[-1]["head.weight"])


@pytest.mark.parametrize(("name", "step"), [("constant", 6), ("constant", 18), ("cyclic", 19), ("decay", 3)])
def test_resuming_in_mid_epoch_changes_nothing(tree, tmp_path, runs, name, step):
    config = next(config for config in RECIPE.trainings(short(tree, tmp_path / "none-0")) if config.lr_schedule == name)
    if name == "constant":
        config = config.replace(snapshots=(17, 18, 19, 20))
    if name == "cyclic":
        config = config.replace(branch_from=runs["constant"])
    with pytest.raises(RunInterrupted, match=f"from step {step}"):
        train(config, callback=interrupt_at(step))
    train(config)
    require_same(runs[name], config.output)


@pytest.mark.parametrize(("every", "first"), [(3, 7), (None, 8)])
def test_checkpoints_do_not_wait_for_the_end_of_an_epoch(tree, tmp_path, runs, monkeypatch, every, first):
    """A run that is killed saves nothing more, and an epoch of ImageNet takes minutes; here it has 4 steps."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    [config, *_] = RECIPE.trainings(short(tree, tmp_path / "none-0", checkpoint_every=every))
    with pytest.raises(ZeroDivisionError):
        train(config, callback=crash_at(8))
    seen = RecordingCallback()
    train(config, callback=seen)
    assert seen.steps == list(range(first, 21))
    require_same(runs["decay"], config.output)


def test_statistics_of_batch_norms_are_estimated_for_averages(tree, tmp_path):
    config = resolve(short(tree, tmp_path / "run", network="test_resnet", image_size=32, steps=4, averages=("ema",)))
    assert not config.freeze_bn
    train(config)
    sources = hold_out(load_dataset(config), None).sources
    training = TrainingState(config, sources, Dist(torch.device("cpu")))
    model = networks.build("test_resnet", 2, freeze_bn=False, image_size=32)
    stored = load_file(tmp_path / "run" / "weights" / "ema.safetensors")
    model.load_state_dict(stored)
    for norm in batch_norms(model):
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over equal batches
    with torch.no_grad():
        for step in range(1, 5):
            for images in batch_at(training.loader, step).images.split(2):
                model.train()(images)
    for norm in ("bn1", "layer4.0.bn2"):
        for buffer in ("running_mean", "running_var"):
            expected = model.get_submodule(norm).get_buffer(buffer)
            torch.testing.assert_close(stored[f"{norm}.{buffer}"], expected, rtol=1e-3, atol=1e-5)


def test_accumulated_gradients_are_those_of_the_whole_batch():
    whole, parts = (make("erm") for _ in range(2))
    parts.load_state_dict(whole.state_dict())
    for seed in range(2):
        batch = batch_for(whole, seed)
        half = len(batch.labels) // 2
        halves = [Batch(1, batch.images[rows], batch.labels[rows]) for rows in (slice(half), slice(half, None))]
        loss = whole.update(batch, {}, StepContext())
        torch.testing.assert_close(parts.accumulate(iter(halves), 2, StepContext()), loss)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("schedule", ["decay", "constant", "cyclic"])
def test_learning_rates_of_the_paper(schedule):
    """Batches of 2,048 make a rate of 0.8; with 10 steps an epoch, 90 epochs are 900 steps."""
    options = {"network": "small", "image_size": 28, "lr_schedule": schedule}
    config = RunConfig.from_options(dataset="imagenet", target="none", output="unused", **options)
    config = fill_defaults(config, stored={}, n_images=0, bf16=False, training_images=(2048 * 10 + 7,))
    assert (config.steps, config.evaluate_every) == (900, 10)
    assert averaging_plan(config).late == 720
    assert RECIPE.branch_step(config) == (None if schedule == "decay" else 720)
    split = DomainSplit(ArrayDomain("images", np.zeros(1, np.int64), np.zeros((1, 8, 8, 3), np.uint8)), "train", [0])
    sources = Sources(("a", "b"), image_spec(config, ImageSpec()), (split,), (split,), ())
    algorithm = build_algorithm(config, sources, Dist(torch.device("cpu")))
    [scheduler] = build_schedulers(config, algorithm)
    optimizer, rates = algorithm.optimizers["main"], []
    for _ in range(900):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert isinstance(optimizer, torch.optim.SGD)
    group = optimizer.param_groups[0]
    assert (group["momentum"], group["weight_decay"]) == (0.9, 1e-4)
    assert rates[0] == pytest.approx(0.8 / 50)
    assert rates[49] == rates[50] == pytest.approx(0.8)  # after 5 epochs
    if schedule == "decay":
        assert rates[475] == pytest.approx(0.4)
        assert rates[899] == pytest.approx(0.8 / 850)
    else:
        assert rates[385] == pytest.approx((0.8 + 0.04) / 2)
        ends = rates[749::30]  # cycles of 3 epochs
        assert len(ends) == 6
        assert ends == pytest.approx([0.04 if schedule == "constant" else 0.002] * 6)
        assert max(rates[720:]) == pytest.approx(0.04 if schedule == "constant" else 0.04 * (1 - 0.95 / 30))
        # SWAD takes every update of the last 20 %, SWA that at the end of every cycle.
        config = dataclasses.replace(config, averages=RECIPE.AVERAGES[schedule])
        [average] = build_averages(config, algorithm.predictor).values()
        assert (average.rule.start, average.rule.end, average.rule.interval) == (
            720,
            900,
            1 if schedule == "constant" else 30,
        )


def test_problems_are_found_before_training(tree, tmp_path):
    def problem(**changes) -> str:
        with pytest.raises(ConfigError) as caught:
            resolve(short(tree, tmp_path, **changes))
        return str(caught.value)

    assert "which coral does not support: use erm" in problem(algorithm="coral")
    assert "must be one of constant, cyclic, decay, got 'step:at=0.5'" in problem(lr_schedule="step:at=0.5")
    assert "at least 2 steps, got 1: train for more epochs" in problem(epochs=0.1)
    assert "use dropout=0" in problem(hyperparameters={"dropout": 0.5})
    assert "lower warmup_epochs" in problem(warmup_epochs=5)
    assert "epochs must be a number above 0" in problem(epochs=0)
    assert "the reference schedule belongs to DomainBed's protocol" in problem(schedule="reference")
    # A resolved configuration is resolved again when it is trained.
    config = resolve(resolve(short(tree, tmp_path, augmentation={"crop": 0.5})))
    assert config.augmentation == {"crop": 0.5, "flip": 0.5, "jitter": 0.0, "grayscale": 0.0}
    config = RunConfig.from_options(
        dataset="digits", target="paper", output=tmp_path, micro_batch=2, lr_schedule="decay"
    )
    with pytest.raises(ConfigError, match="micro_batch, lr_schedule=decay belongs to the imagenet recipe"):
        resolve(config)
