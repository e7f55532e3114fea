"""`--recipe own`: the settings of an algorithm's own paper become the defaults of a run, and are used."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from helpers.runs import crash_at, require_same, short
from swad.testbed import algorithms
from swad.testbed.algorithms.erm import ERM
from swad.testbed.algorithms.hyperparameters import Choice, Hyperparameters, hyper
from swad.testbed.algorithms.recipe import Recipe
from swad.testbed.algorithms.registry import get_algorithm, list_algorithms
from swad.testbed.data.benchmarks import get
from swad.testbed.data.domains import Defaults
from swad.testbed.sweep.plan import expand
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training import recipes
from swad.testbed.training.checks import find_problems
from swad.testbed.training.config import RunConfig
from swad.testbed.training.distributed import Dist
from swad.testbed.training.loop import train
from swad.testbed.training.recipes import default_hyperparameters
from swad.testbed.training.resolve import resolve
from swad.testbed.training.state import build_algorithm, build_schedulers

RECIPE = Recipe(
    optimizer="sgd",
    momentum=0.8,
    lr_schedule="exponential:gamma=0.5",
    epochs=30,
    freeze_bn=False,
    augmentation={"crop": 0.8, "grayscale": 0},
    batches="pooled",
    hyperparameters={"lr": 0.01, "weight_decay": 5e-4, "batch_size": 64},
    by_dataset={"DomainNet": Recipe(steps=7, lr_schedule="constant", hyperparameters={"lr": 0.02})},
)


@pytest.fixture(autouse=True)
def _own(monkeypatch):
    monkeypatch.setattr(ERM, "own_recipe", RECIPE)


def request(dataset: str = "PACS", **options) -> RunConfig:
    settings = {"target": get(dataset).domains[0], "data_dir": Path("data"), "recipe": "own"}
    return RunConfig.from_options(output=Path("run"), dataset=dataset, **settings | options)


def test_the_recipe_fills_in_what_a_run_does_not_say():
    config = resolve(request())
    assert config.optimizer == "sgd"
    assert config.momentum == 0.8
    assert config.freeze_bn is False
    assert config.augmentation == {"crop": 0.8, "flip": 0.5, "jitter": 0.3, "grayscale": 0}
    assert config.hyperparameters == {"lr": 0.01, "weight_decay": 5e-4, "batch_size": 64, "dropout": 0}
    # 80 % of each source domain of PACS, in batches of 64 from all of them.
    images = sum(n - n // 5 for name, n in get("PACS").counts.items() if name != "art_painting")
    assert config.steps == round(30 * images / 64)
    assert resolve(config) == config
    assert not config.differences(config.to_json())


def test_a_dataset_may_have_settings_of_its_own():
    config = resolve(request("DomainNet"))
    assert (config.steps, config.hyperparameters["lr"]) == (7, 0.02)
    assert config.hyperparameters["batch_size"] == 64
    for stated, own in (({"steps": 5}, {"epochs": 2}), ({"epochs": 2}, {"steps": 5})):
        assert Recipe(**stated, by_dataset={"PACS": Recipe(**own)}).settings("PACS") == own


def test_what_a_run_says_wins():
    said = {
        "optimizer": "adam",
        "lr_schedule": "constant",
        "freeze_bn": True,
        "augmentation": {"crop": 1.0},
        "batches": "balanced",
        "hyperparameters": {"lr": 5e-5, "batch_size": 8},
    }
    config = resolve(request(**said, steps=11))
    for name, value in config.options().items():
        assert name not in said or name in ("augmentation", "hyperparameters") or value == said[name]
    assert config.momentum is None
    assert config.augmentation["crop"] == 1.0
    assert config.augmentation["grayscale"] == 0
    assert config.hyperparameters == {"lr": 5e-5, "weight_decay": 5e-4, "batch_size": 8, "dropout": 0}
    assert config.steps == 11
    images = sum(n - n // 5 for name, n in get("PACS").counts.items() if name != "art_painting")
    three = resolve(request(**said, epochs=3))
    assert three.steps == round(3 * images / 24)
    assert resolve(request("DomainNet", epochs=1)).steps > 7, "epochs replace the recipe's steps"
    assert resolve(request(epochs=3, steps=5)).steps == 5, "the epochs then only divide the schedule"


def test_the_protocol_is_the_default():
    config = resolve(request(recipe=None))
    assert (config.optimizer, config.lr_schedule, config.momentum) == (
        "adam",
        "constant",
        None,
    )
    assert (config.freeze_bn, config.batches, config.epochs) == (True, "balanced", None)
    assert config.augmentation == {"crop": 0.7, "flip": 0.5, "jitter": 0.3, "grayscale": 0.1}
    before = config.to_json()
    for section, names in {
        "training": ("recipe", "optimizer", "momentum", "epochs"),
        "data": ("augmentation", "batches"),
    }.items():
        for name in names:
            del before["config"][section][name]
    assert not config.differences(before), "runs of earlier versions can be resumed"


def test_a_sweep_keeps_a_value_that_is_the_protocols_but_not_the_recipes():
    for recipe, values in (("own", {"lr": 3e-3}), (None, {})):
        options = {"recipe": recipe, "hyperparameters": {"lr": get("digits").defaults.lr}}
        spec = SweepSpec(datasets=("digits",), targets=("paper",), trials=(0,), options=options)
        [run] = expand(spec, "sweep").runs
        assert run.config.hyperparameters == values


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "coral"}, "coral has no recipe of its own: leave out recipe (--recipe), or use one of arm, "),
        ({"algorithm": "coral", "recipe": None, "batches": "pooled"}, "needs images of every domain in a step"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum is for the optimizer sgd"),
        ({"momentum": 1.0}, "momentum must be a number of at least 0 and below 1, got 1.0"),
        ({"augmentation": {"crop": 0}}, "crop of the augmentation must be a number from 0.01 to 1, got 0"),
        ({"augmentation": {"hue": 0.1}}, "the augmentation has crop, flip, jitter, grayscale, got hue"),
        ({"lr_schedule": "step:at=2"}, "at of the lr_schedule step must be from 0 to 1"),
        ({"recipe": "own", "optimizer": "lion"}, "optimizer must be one of adam, sgd, got 'lion'"),
    ],
)
def test_a_mistake_is_one_line(options, words):
    problems = find_problems(request(**options))
    assert any(words in problem and "\n" not in problem for problem in problems), problems


def test_a_broken_file_of_another_algorithm_does_not_hide_the_mistake(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import nothing_like_this\n")
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])  # as SWAD_ALGORITHMS does
    (problem,) = find_problems(request(algorithm="coral"))
    assert problem.startswith("coral has no recipe of its own: leave out recipe (--recipe), or use one of arm, ")


def test_a_recipe_states_settings_for_which_a_run_can_say_nothing(monkeypatch):
    rule = "the recipe of erm may state augmentation, batches, .*, weights, got "
    for stated in ({"optimiser": "sgd"}, {"early_stop": False}, {"device": "cuda"}, {"seed": 3}):
        monkeypatch.setattr(ERM, "own_recipe", Recipe(**stated))
        (problem,) = find_problems(request())
        assert re.fullmatch(f"{rule}{next(iter(stated))}", problem)
    monkeypatch.setattr(ERM, "own_recipe", Recipe(optimizer="lion", precision="fp32"))
    assert find_problems(request()) == ["optimizer must be one of adam, sgd, got 'lion'"]


def test_every_recipe_is_valid(monkeypatch):
    monkeypatch.undo()
    for name in list_algorithms():
        recipe = get_algorithm(name).own_recipe
        for dataset in ("digits", "PACS", *(recipe.by_dataset if recipe else ())):
            assert recipe is None or not find_problems(request(dataset, algorithm=name)), name


JITTERED = {"crop": 0.8, "flip": 0.5, "jitter": 0.4, "grayscale": 0}
SGD = {"optimizer": "sgd", "momentum": 0.9, "lr_schedule": "step:at=0.6,gamma=0.1", "epochs": 100, "freeze_bn": False}


@pytest.mark.parametrize(
    ("algorithm", "dataset", "settings", "hyperparameters"),
    [
        ("masf", "PACS", {"optimizer": "adam", "steps": 10_000, "freeze_bn": True, "batches": "balanced",
            "augmentation": {"crop": 1, "flip": 0.0625, "jitter": 0, "grayscale": 0}},
            {"lr": 1e-5, "metric_lr": 1e-5, "inner_lr": 1e-5, "batch_size": 128, "dropout": 0.5, "weight_decay": 0}),
        ("dmg", "PACS", {"optimizer": "adam", "lr_schedule": "exponential:gamma=0.99", "epochs": 150,
            "freeze_bn": False, "batches": "pooled", "augmentation": JITTERED},
            {"lr": 1e-4, "mask_lr": 1e-4, "weight_decay": 1e-5, "batch_size": 64, "overlap": 0.1}),
        ("dmg", "DomainNet", {"lr_schedule": "constant", "epochs": 50,
            "augmentation": {"crop": 0.77, "flip": 0.5, "jitter": 0, "grayscale": 0}}, {"lr": 1e-4, "weight_decay": 0}),
        ("er", "PACS", {**SGD, "batches": "balanced", "augmentation": JITTERED},
            {"lr": 1e-3, "lr_c": 0.1, "weight_decay": 5e-4, "batch_size": 64, "warm_up": 0.1}),
        ("eisnet", "PACS", {**SGD, "batches": "pooled", "augmentation": JITTERED},
            {"lr": 1e-3, "weight_decay": 2e-5, "batch_size": 64, "grayscale": 0.1}),
        ("dson", "PACS", {"optimizer": "adam", "steps": 5000, "freeze_bn": False}, {"lr": 5e-5}),
        ("miro", "PACS", {"steps": 5000, "freeze_bn": True}, {"penalty": 0.01, "lr": 5e-5}),
        ("miro", "VLCS", {}, {"penalty": 0.01}),
        ("miro", "OfficeHome", {}, {"penalty": 0.1}),
        # Weight decays are twice the published ones, as the gradients are.
        ("sagm", "PACS", {}, {"lr": 3e-5, "matching": 0.001, "weight_decay": 2e-4, "dropout": 0.5, "rho": 0.05}),
        ("sagm", "VLCS", {}, {"lr": 1e-5, "matching": 0.001, "weight_decay": 2e-4, "dropout": 0.5}),
        ("sagm", "OfficeHome", {}, {"lr": 1e-5, "matching": 0.0005, "weight_decay": 2e-4, "dropout": 0.5}),
        ("sagm", "TerraIncognita", {}, {"lr": 1e-5, "matching": 0.001, "weight_decay": 2e-4, "dropout": 0.5}),
        ("sagm", "DomainNet", {}, {"lr": 3e-5, "matching": 0.0005, "weight_decay": 2e-6, "dropout": 0.5}),
    ],
)  # fmt: skip
def test_the_settings_of_the_papers(algorithm, dataset, settings, hyperparameters):
    found = resolve(request(dataset, algorithm=algorithm)).options()
    assert {name: found[name] for name in settings} == settings
    assert {name: found["hyperparameters"][name] for name in hyperparameters} == hyperparameters


# --- training ---------------------------------------------------------------------------------------------------


def test_a_run_uses_it_and_resumes(tmp_path):
    """Eight steps in pooled batches of 64 images: SGD with momentum, and a learning rate that halves 30 times."""
    settings = {"recipe": "own", "steps": 8, "hyperparameters": {}, "averages": ("swad",)}
    whole = train(short(tmp_path / "whole", **settings))
    assert whole.config.optimizer == "sgd"
    with pytest.raises(ZeroDivisionError):
        train(short(tmp_path / "broken", **settings), callback=crash_at(6))
    train(short(tmp_path / "broken", **settings))
    require_same(tmp_path / "whole", tmp_path / "broken")


def test_the_steps_are_those_of_plain_sgd(tmp_path):
    """With a rate per group and schedule, against torch's unfused SGD; an optimizer may keep its rate."""
    from swad.testbed.data.benchmarks import load
    from swad.testbed.data.splits import hold_out

    config = resolve(short(tmp_path, recipe="own", steps=30, hyperparameters={}))
    sources = hold_out(load("digits"), "paper").sources
    algorithm = build_algorithm(config, sources, Dist(torch.device("cpu")))
    assert algorithm.run_info.total_steps == 30
    assert algorithm.n_images == 64
    *body, bias = algorithm.predictor.parameters()
    twins = [param.detach().clone().requires_grad_() for param in (*body, bias)]
    algorithm.make_optimizers = lambda: {
        "main": algorithm.optimizer([{"params": body}, {"params": [bias], "lr": 0.1, "weight_decay": 0}]),
        "other": algorithm.optimizer([torch.nn.Parameter(torch.zeros(1))]),
    }
    algorithm.constant_lr = ("other",)
    twin = torch.optim.SGD(
        [{"params": twins[:-1]}, {"params": twins[-1:], "lr": 0.1, "weight_decay": 0}],
        lr=0.01,
        momentum=0.8,
        weight_decay=5e-4,
        fused=False,
    )
    [scheduler] = build_schedulers(config, algorithm)
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        for param, other in zip((*body, bias), twins, strict=True):
            # A parameter may get its first gradient later than others.
            grad = torch.randn(param.shape, generator=generator) if step or param is not body[0] else None
            param.grad, other.grad = grad, None if grad is None else grad.clone()
        for group, lr in zip(twin.param_groups, (0.01, 0.1), strict=True):
            group["lr"] = lr * 0.5**step
        algorithm.optimizers["main"].step()
        twin.step()
        scheduler.step()
    assert algorithm.optimizers["other"].param_groups[0]["lr"] == 0.01
    for param, other in zip((*body, bias), twins, strict=True):
        torch.testing.assert_close(param, other, rtol=1e-6, atol=1e-8)


def test_an_algorithms_own_values_win_over_those_of_a_dataset(monkeypatch):
    bright = dataclasses.replace(get("PACS"), defaults=Defaults(lr=0.5, batch_size=9))
    monkeypatch.setattr(recipes.benchmarks, "get", lambda name: bright if name == "Bright" else get(name))
    assert default_hyperparameters("Bright", "erm")["lr"] == 0.5
    assert default_hyperparameters("Bright", "erm")["batch_size"] == 9

    @dataclasses.dataclass(frozen=True)
    class Slow(Hyperparameters):
        lr: float = hyper(1e-6, Choice((1e-6,)), "learning rate")

    monkeypatch.setattr(ERM, "Hyperparameters", Slow)
    assert default_hyperparameters("Bright", "erm")["lr"] == 1e-6
    assert default_hyperparameters("digits", "erm")["lr"] == 3e-3, "on low-resolution data the dataset's wins"
