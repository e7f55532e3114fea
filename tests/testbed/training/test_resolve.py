"""Checks against datasets, algorithms and the machine, and the defaults that depend on them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import short
from helpers.small_trees import make_tree
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark
from swad.testbed.data.domains import ImageSpec
from swad.testbed.training import resolve as resolve_module
from swad.testbed.training.config import ConfigError, RunConfig
from swad.testbed.training.recipes import averaging_plan
from swad.testbed.training.resolve import derived_seed, resolution_notes, resolve
from swad.util.images import IMAGENET_MEAN, IMAGENET_STD


def pacs(tmp_path: Path, **options: Any) -> RunConfig:
    settings = {"dataset": "PACS", "target": "photo", "data_dir": tmp_path} | options
    return RunConfig.from_options(output=tmp_path / "run", **settings)


def test_all_problems_are_reported_together(tmp_path):
    config = short(
        tmp_path,
        target="papyrus",
        steps=0,
        precision="fp8",
        algorithm="arm_wrestling",
        averages=("swad:tolerance_ratio=x", "swat"),
        weights="nowhere.safetensors",
        device="toaster",
        hyperparameters={},
    )
    with pytest.raises(ConfigError) as caught:
        resolve(config)
    text = str(caught.value)
    assert len(caught.value.problems) == 8
    for word in ("papyrus", "steps", "fp8", "erm", "tolerance_ratio", "swat", "nowhere", "toaster"):
        assert word in text, word


@pytest.mark.parametrize(
    ("dataset", "target", "device", "pipeline", "precision"),
    [
        ("PACS", "photo", "cpu", "torchvision", "fp32"),
        ("PACS", "photo", "cuda", "gpu", "bf16"),
        ("DomainNet", "clipart", "cuda", "torchvision", "bf16"),  # 115 GB
        ("digits", "paper", "cuda", "torchvision", "fp32"),
    ],
)
def test_defaults_depend_on_the_device(dataset, target, device, pipeline, precision, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    config = RunConfig.from_options(dataset=dataset, target=target, output=tmp_path, data_dir=tmp_path, device=device)
    assert (resolve(config).input_pipeline, resolve(config).precision) == (pipeline, precision)
    exact = resolve(config.replace(input_pipeline="torchvision", precision="fp32"))
    assert (exact.input_pipeline, exact.precision) == ("torchvision", "fp32")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    assert resolve(config).precision == "fp32"


@pytest.mark.parametrize(
    ("algorithm", "name", "on_photos", "on_digits"),
    [("dson", "start", 0.999, 0.5), ("dson+sam", "start", 0.999, 0.5), ("pi_model", "input_noise", 0.0, 0.15)],
)
def test_a_constant_of_low_resolution_images_is_the_default_there(algorithm, name, on_photos, on_digits, tmp_path):
    digits = {"dataset": "digits", "target": "paper"}
    assert resolve(pacs(tmp_path, algorithm=algorithm)).hyperparameters[name] == on_photos
    assert resolve(pacs(tmp_path, algorithm=algorithm, **digits)).hyperparameters[name] == on_digits
    chosen = pacs(tmp_path, algorithm=algorithm, hyperparameters={name: 0.25}, **digits)
    assert resolve(chosen).hyperparameters[name] == 0.25


def test_a_resumed_run_keeps_the_defaults_it_started_with(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    started = resolve(pacs(tmp_path, device="cuda"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(started.to_json()))
    failed = resolve(pacs(tmp_path, device="cpu"))
    assert (failed.input_pipeline, failed.precision) == ("torchvision", "fp32"), (
        "a run without records cannot be resumed"
    )
    (tmp_path / "run" / "records.jsonl").write_text("{}\n")
    here = resolve(pacs(tmp_path, device="cpu"))
    assert (here.input_pipeline, here.precision) == ("gpu", "bf16")
    assert not here.differences(started.to_json())
    changed = resolve(pacs(tmp_path, device="cpu", input_pipeline="torchvision"))
    assert changed.differences(started.to_json()) == ["input_pipeline was 'gpu', now 'torchvision'"]
    before = started.to_json()
    del before["config"]["evaluation"]["early_stop"]
    assert not here.differences(before), "a field that was added later had its default then"


def test_the_files_of_a_folder_dataset_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    make_tree(tmp_path, ["left", "right"], ["cat", "dog"], 1)
    config = pacs(tmp_path, dataset="folder", device="cuda")
    assert resolve(config).input_pipeline == "gpu"
    monkeypatch.setattr(resolve_module, "LARGEST_DEFAULT_CACHE", 3 * 256 * 256 * 3)
    assert resolve(config).input_pipeline == "torchvision"


def notes(config):
    return resolution_notes(config, resolve(config))


@pytest.mark.parametrize(
    ("changes", "frozen", "noted"),
    [
        ({}, True, False),
        ({"weights": "random"}, False, True),
        ({"weights": "random", "freeze_bn": True, "hyperparameters": {"lr": 5e-5}}, True, False),
        ({"network": "small", "image_size": 32}, True, True),
        ({"dataset": "digits", "target": "paper"}, True, False),
    ],
)
def test_random_weights_train_their_batch_norms_and_need_a_higher_learning_rate(tmp_path, changes, frozen, noted):
    config = pacs(tmp_path, **changes)
    assert resolve(config).freeze_bn is frozen
    assert [text.startswith("lr is 5e-05") for text in notes(config)] == [True] * noted


def test_unexpected_choices_are_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    net = pacs(tmp_path, dataset="DomainNet", target="clipart", device="cuda")
    assert notes(net) == [
        "using the torchvision input pipeline: the cache of decoded images would take 115 GB, more than the default "
        "limit of 32 GB; set input_pipeline to gpu (--input-pipeline) to build it"
    ]
    assert notes(net.replace(device="auto")) == notes(net)
    monkeypatch.setattr(resolve_module, "count_images", lambda config: 10**6)
    own = pacs(tmp_path, dataset="folder", target="a", device="auto")
    assert "would take 197 GB" in notes(own)[0]
    assert not notes(net.replace(input_pipeline="torchvision"))
    assert not notes(net.replace(input_pipeline="gpu", cache_size=64))
    assert not notes(pacs(tmp_path))
    assert notes(pacs(tmp_path).replace(cache_size=64)) == [
        "cache_size: ignored, because the torchvision input pipeline uses no image cache; "
        "set input_pipeline to gpu (--input-pipeline) to use one"
    ]
    monkeypatch.setattr(resolve_module, "training_images", lambda config: (5000,))
    monkeypatch.setattr(resolve_module, "count_images", lambda config: pytest.fail("the recipe builds no cache"))
    large = pacs(tmp_path, dataset="imagenet", target="none", device="cuda")
    assert not notes(large)
    for pipeline in ("torchvision", "gpu"):
        [note] = notes(large.replace(input_pipeline=pipeline, cache_size=64))
        assert note == "cache_size: ignored, because the imagenet recipe uses no image cache"


def test_an_augmentation_of_low_resolution_images_is_ignored_with_a_note(tmp_path):
    digits = RunConfig.from_options(dataset="digits", target="paper", output=tmp_path, algorithm="er")
    assert not notes(digits)
    assert notes(digits.replace(augmentation={"crop": 0.8})) == [
        "augmentation (crop): ignored, because low-resolution images are not augmented"
    ]
    assert notes(digits.replace(recipe="own"))[0].startswith("augmentation (crop, jitter, grayscale): ignored")
    assert not notes(pacs(tmp_path, algorithm="er", recipe="own"))


def test_one_domain_must_be_left_to_train_on(tmp_path):
    targets = ("paper", "board", "clutter", "outline")
    with pytest.raises(ConfigError, match=r"must be left to train on, got the targets 'paper\+board"):
        resolve(RunConfig.from_options(dataset="digits", target=targets, output=tmp_path))


def test_defaults_come_from_the_dataset(tmp_path):
    vlcs = resolve(pacs(tmp_path, dataset="vlcs", target="SUN09"))
    assert (vlcs.dataset, vlcs.steps, vlcs.evaluate_every) == ("VLCS", 5000, 50)
    assert averaging_plan(vlcs).tolerance_ratio == 0.2
    assert (vlcs.network, vlcs.weights) == ("resnet50.tv_in1k", "pretrained")
    assert vlcs.hyperparameters["lr"] == 5e-5
    trials = {resolve(pacs(tmp_path, dataset="vlcs", target="SUN09", trial=trial)).seed for trial in range(3)}
    assert len(trials) == 3


@pytest.mark.parametrize(("steps", "every"), [(None, 20), (6000, 20), (400, 20), (399, 19), (100, 5), (8, 1)])
def test_a_short_run_without_a_published_schedule_has_20_evaluations(tmp_path, steps, every):
    run = resolve(RunConfig.from_options(dataset="digits", target="paper", output=tmp_path, steps=steps))
    assert run.evaluate_every == every
    assert steps is None or len([n for n in range(1, steps + 1) if run.evaluates(n)]) >= min(steps, 20)
    assert resolve(pacs(tmp_path, steps=steps)).evaluate_every == min(100, steps or 5000)


def test_derived_seeds_never_change(tmp_path):
    """Runs of older versions are only reproduced while these numbers stay."""
    config = resolve(short(tmp_path, target=("paper", "board"), trial=2, algorithm="sam+coral"))
    text = '["digits", "coral+sam", ["paper", "board"], 2]'
    assert config.seed == derived_seed(config) == int(hashlib.md5(text.encode()).hexdigest(), 16) % 2**31


def test_images_are_the_networks_unless_the_settings_say_otherwise(tmp_path):
    common = {"dataset": "folder", "target": "a", "data_dir": tmp_path, "output": tmp_path / "run"}
    data = resolve(RunConfig.from_options(**common))
    assert (data.image_size, data.image_mean, data.image_std) == (224, IMAGENET_MEAN, IMAGENET_STD)
    data = resolve(RunConfig.from_options(**common, network="vit_tiny_patch16_384", image_std=[1, 1, 1]))
    assert (data.image_size, data.image_mean, data.image_std) == (384, (0.5, 0.5, 0.5), (1, 1, 1))
    data = resolve(RunConfig.from_options(dataset="digits", target="paper", output=tmp_path / "run"))
    assert data.image_size is None  # low-resolution images keep their dataset's


def test_gray_images_keep_the_normalization_of_their_dataset(tmp_path, monkeypatch):
    spec = ImageSpec(channels=1, mean=(0.5,), std=(0.2,))
    monkeypatch.setattr(benchmarks, "get", lambda name: Benchmark("folder", "", ("a", "b"), image_spec=spec))
    data = resolve(RunConfig.from_options(dataset="folder", target="a", data_dir=tmp_path, output=tmp_path / "run"))
    assert (data.image_size, data.image_mean, data.image_std) == (224, (0.5,), (0.2,))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"image_size": 64}, "images of digits keep their size of"),
        ({"image_mean": [0.5]}, "image_mean must have 3 numbers, one per channel, got 1"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std must be numbers"),
        ({"steps": 10, "snapshots": (11,)}, "snapshots must be between step 1 and step 10, got 11"),
        ({"averages": ("swad:as=step-000010",)}, "must not be named like a snapshot, got 'step-000010'"),
        ({"threads": 100_000}, "threads must be at most 1024, got 100000"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, options, problem):
    config = RunConfig.from_options(dataset="digits", target="paper", output=tmp_path / "run", **options)
    with pytest.raises(ConfigError, match=problem):
        resolve(config)


def test_the_last_step_of_the_reference_schedule_may_be_saved(tmp_path):
    options = {"dataset": "digits", "target": "paper", "steps": 10, "snapshots": (11,), "schedule": "reference"}
    assert resolve(RunConfig.from_options(output=tmp_path / "run", **options)).snapshots == (11,)
