"""Runs of algorithms with their own predictors, and of combinations with SAM: weights have the recorded scores."""

from __future__ import annotations

import json

import pytest
import torch

from helpers.runs import interrupt_at, require_same, short
from swad.testbed.data import benchmarks
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import hold_out
from swad.testbed.training.config import ConfigError, ResolvedConfig, RunConfig
from swad.testbed.training.distributed import Dist
from swad.testbed.training.evaluation import evaluate_splits
from swad.testbed.training.export import load_predictor, read_card
from swad.testbed.training.loop import RunInterrupted, train
from swad.testbed.training.resolve import resolve


def settings(name, **more):
    own = {"rho": 0.1} if name.endswith("sam") else {"context_width": 2} if name == "arm" else {}
    return {"algorithm": name, "steps": 8, "hyperparameters": {"batch_size": 4, "lr": 0.01, **own}, **more}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mtl", "arm", "mixstyle", "sagnet", "dmg", "dson", "coral+sam", "mtl+sam"])
@pytest.mark.usefixtures("few")
def test_a_resumed_runs_predictor_has_the_recorded_scores(name, tmp_path):
    with pytest.raises(RunInterrupted):
        train(short(tmp_path / "cut", **settings(name)), callback=interrupt_at(5))
    result = train(short(tmp_path / "cut", **settings(name)))
    if name == "mtl+sam":  # the contract compares all others with an unbroken run
        require_same(train(short(tmp_path / "whole", **settings(name))).run_dir, tmp_path / "cut")
    path = tmp_path / "cut" / "weights" / "swad.safetensors"
    model = load_predictor(path).model
    _, target = hold_out(benchmarks.load("digits", None), ("paper",), trial=0)
    image_spec = benchmarks.get("digits").image_spec
    loaders = {"out": EvalLoader(target.val[0], image_spec, 4)}
    score = evaluate_splits(model, loaders, Dist(torch.device("cpu")))["out"]
    recorded = result.scores["swad"]["paper"]["out"]
    assert score.accuracy == recorded["accuracy"]
    assert score.loss == pytest.approx(recorded["loss"], rel=1e-5)
    text = path.with_suffix(".md").read_text()
    assert "load_predictor" in text
    grouped = name.startswith(("mtl", "arm"))
    assert ("Predict 4 images of one domain per batch, in random order with all classes mixed" in text) is grouped
    assert read_card(path)["algorithm"] == name


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_cards_of_wrapped_networks_do_not_mention_timm(tmp_path):
    result = train(
        short(tmp_path / "run", network="test_resnet", **settings("mtl", weights="random", evaluate_every=8))
    )
    text = (tmp_path / "run" / "weights" / "swad.md").read_text()
    assert "load_predictor" in text
    assert "timm.create_model" not in text
    model = load_predictor(tmp_path / "run" / result.weights["swad"]).model
    assert model(torch.randn(5, 3, 32, 32)).shape == (5, 10)


def test_the_config_of_a_combination_with_sam(tmp_path):
    config = resolve(RunConfig.from_options(dataset="digits", target="paper", output=tmp_path, algorithm="SAM+Coral"))
    assert config.algorithm == "coral+sam"
    assert config.hyperparameters["rho"] == 0.05
    assert config.hyperparameters["gamma"] == 1.0
    assert config.seed == resolve(config.replace(algorithm="coral+sam", seed=None)).seed
    other = RunConfig.from_options(dataset="digits", target="paper", output=tmp_path, algorithm="coral")
    assert config.seed != resolve(other).seed
    again = ResolvedConfig.from_json(json.loads(json.dumps(config.to_json())), tmp_path)
    assert resolve(again) == config
    with pytest.raises(ConfigError, match=r"no hyperparameter beta, only lr, .*gamma, rho"):
        resolve(
            RunConfig.from_options(
                dataset="digits", target="paper", output=tmp_path, algorithm="coral+sam", hyperparameters={"beta": 1}
            )
        )
    with pytest.raises(ConfigError, match="SAM needs an algorithm that steps on one loss"):
        resolve(RunConfig.from_options(dataset="digits", target="paper", output=tmp_path, algorithm="dann+sam"))
