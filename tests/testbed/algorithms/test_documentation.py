"""What docs/reference says about methods is true, its examples work, and the cost of every method is measured."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys

import pytest
import torch
from torch.nn import functional

from helpers import ROOT, forked
from helpers.documents import example
from helpers.runs import short
from helpers.tiny_algorithms import batch_for, make, noise_for, update
from swad.testbed import algorithms as package
from swad.testbed.algorithms import registry
from swad.testbed.algorithms.registry import AlgorithmError, canonical_name, get_algorithm, list_algorithms
from swad.testbed.training.loop import train

METHODS = (ROOT / "docs" / "reference" / "methods.md").read_text()


def test_methods_that_cannot_be_combined_with_sam_are_named():
    refused = [name for name in list_algorithms() if name not in registry.SHARPNESS_AWARE and not _composes(name)]
    sentence = re.search(r"every algorithm that steps on one loss\. (.+?) make several steps", METHODS, re.DOTALL)[1]
    named = [canonical_name(name) for name in re.findall(r"\w+", sentence) if name != "and"]
    assert sorted(named) == sorted(refused)


def _composes(name):
    try:
        return get_algorithm(f"{name}+sam")
    except AlgorithmError:
        return None


def test_the_cost_of_every_algorithm_is_measured():
    measured = json.loads((ROOT / "benchmarks" / "results" / "methods-cpu.json").read_text())["cpu"]
    assert set(measured) == {*list_algorithms(), "coral+sam"}
    assert {frozenset(row) for row in measured.values()} == {frozenset({"eager_ms", "eager_x_erm"})}


def test_on_a_cpu_the_benchmark_measures_time_only(capsys):
    measure = runpy.run_path(str(ROOT / "benchmarks" / "methods.py"))["table"]
    rows = measure(["erm", "rsc"], "cpu", "small", rounds=1)
    assert list(rows) == ["erm", "rsc"]
    assert all(set(row) == {"eager_ms", "eager_x_erm"} for row in rows.values())
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["eager", "ms", "x", "ERM"]
    assert [len(line.split()) for line in lines] == [3, 3]


def method(name):
    return example("reference/writing-a-method.md", f"ALGORITHM = {name}\n")


@pytest.fixture
def _examples(tmp_path, monkeypatch):
    """The examples as files in a folder where algorithms are looked up."""
    (tmp_path / "methods").mkdir()
    for name in ("SD", "Teacher"):
        (tmp_path / "methods" / f"{name.lower()}.py").write_text(method(name))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / "methods")])
    yield
    for name in ("sd", "teacher"):
        sys.modules.pop(f"swad.testbed.algorithms.{name}", None)
    registry._load.cache_clear()


@pytest.mark.usefixtures("_examples")
def test_the_example_is_an_algorithm(tmp_path):
    assert "sd" in list_algorithms()
    algorithm = make("sd", penalty=3.0)
    batch = batch_for(algorithm)
    scores = algorithm.predictor(batch.images)
    want = functional.cross_entropy(scores, batch.labels) + 3 * scores.square().mean()
    torch.testing.assert_close(algorithm.loss(batch, noise_for(algorithm)), want)
    small = [update(make("sd", penalty=weight, lr=1e-2), batch) for weight in (0.0, 1.0)]
    assert small[1] > small[0]
    own = {"batch_size": 4, "lr": 1e-3, "rho": 0.1}
    result = train(short(tmp_path / "run", algorithm="sd+sam", steps=4, hyperparameters=own, averages=("ema",)))
    assert set(result.scores) == {"best", "last", "ema"}


@pytest.mark.usefixtures("_examples")
def test_the_larger_example_has_phases_optimizers_and_state(tmp_path):
    algorithm = make("teacher", anneal=2, lr=1e-3)
    start = {key: value.clone() for key, value in algorithm.state_dict().items()}
    for step in range(1, 4):
        update(algorithm, batch_for(algorithm, step))
        unchanged = {key for key, value in algorithm.state_dict().items() if value.equal(start[key])}
        assert unchanged == ({"projection.weight", "projection.bias", "center"} if step <= 2 else set())
    own = {"batch_size": 4, "anneal": 2}
    result = train(short(tmp_path / "run", algorithm="teacher+sam", steps=4, hyperparameters=own, averages=("ema",)))
    assert set(result.scores) == {"best", "last", "ema"}


@pytest.mark.slow
def test_the_command_finds_algorithms_in_your_own_folder(tmp_path):
    """In processes of their own, because the variable is read at import."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "SD.py").write_text(method("SD"))

    def swad(*arguments):
        environment = os.environ | {"SWAD_ALGORITHMS": str(mine), "COLUMNS": "200", "PYTHONPATH": str(ROOT / "src")}
        return forked.run(["-m", "swad", *arguments], env=environment)

    run = ["train", "digits", "-t", "paper", "--steps", "4", "--evaluate-every", "2"]
    trained = swad(*run, "--algorithm", "sd+sam", "--set", "penalty=0.01", "-a", "swad", "-o", str(tmp_path / "runs"))
    assert trained.returncode == 0, trained.stderr
    assert "SD + SAM + SWAD" in trained.stdout, "tables spell it as its file"
    (mine / "empty.py").write_text("")
    (mine / "broken.py").write_text("import no_such_package\n")
    listed = swad("algorithms")
    assert listed.returncode == 0, listed.stderr
    assert "Pezeshki" in listed.stdout
    assert "empty: a file of an algorithm must define ALGORITHM" in listed.stdout
    reason = f"cannot import {mine / 'broken.py'}, line 1: ModuleNotFoundError: No module named 'no_such_package'"
    assert f"broken: {reason}" in listed.stdout
    used = swad("train", "digits", "--algorithm", "broken")
    assert used.stderr == f"error: {reason}; correct the file\n"
