from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import numpy as np

from swad.testbed.algorithms.domainbed.hparams import declare
from swad.testbed.algorithms.hyperparameters import Hyperparameters, draw, fill
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data.splits import seed_hash
from swad.testbed.sweep import search
from swad.testbed.sweep.spec import SweepSpec, canonical_algorithms
from swad.testbed.training.recipes import default_hyperparameters


def declared(name):
    return get_algorithm(f"algorithms:{name}").Hyperparameters


def test_a_class_has_the_hyperparameters_that_its_file_has_for_it_and_not_for_erm():
    own = [field.name for field in fields(declared("Adversary"))][4:]
    assert own == ["lambda_", "d_steps", "lr_d", "mlp_width", "mlp_depth", "mlp_dropout"]
    assert [field.name for field in fields(declared("ERM"))] == [field.name for field in fields(Hyperparameters)]


def test_a_hyperparameter_that_is_drawn_as_a_fraction_may_be_one():
    assert declared("Align")().gamma == 1
    assert type(declared("Align")().gamma) is float
    assert fill(declared("Align"), {"gamma": 0.5}).problems() == []
    assert type(declared("Adversary")().d_steps) is int


def test_the_class_gets_them_by_their_own_names_with_what_no_run_sets():
    hparams = fill(declared("Align"), {"gamma": 0.5, "centered": 0, "dropout": 0.1, "lr": 2e-5}).to_hparams()
    assert hparams == {
        "resnet_dropout": 0.1,
        "nonlinear_classifier": False,
        "lr": 2e-5,
        "weight_decay": 0.0,
        "batch_size": 32,
        "gamma": 0.5,
        "centered": False,
        "kernel": "mean",
    }
    assert fill(declared("Adversary"), {"lambda_": 3.0}).to_hparams()["lambda"] == 3.0


def test_draws_are_those_of_the_file():
    from_file = get_algorithm("algorithms:Adversary").Hyperparameters.registry.random_hparams
    theirs = from_file("Adversary", "PACS", seed_hash(3, 1))
    ours = draw(declared("Adversary"), "PACS", 3, 1)
    assert ours.pop("lambda_") == theirs.pop("lambda")
    assert ours.pop("dropout") == theirs.pop("resnet_dropout")
    theirs.pop("nonlinear_classifier")
    assert ours == theirs
    assert not any(isinstance(value, np.generic) for value in ours.values())
    assert draw(declared("Adversary"), "PACS", 0) == {}


def test_a_sweep_searches_them():
    spec = SweepSpec(algorithms=("algorithms:Adversary",), datasets=("digits",), protocol="domainbed", draws=3)
    points = search.points(spec, "algorithms:Adversary", "digits", 0)
    assert len(points) == 3
    assert len({point["lambda_"] for point in points[1:]}) == 2
    assert "dropout" not in points[1]


def test_defaults_follow_the_dataset():
    assert default_hyperparameters("PACS", "algorithms:Adversary")["lr_d"] == 5e-5
    on_digits = default_hyperparameters("digits", "algorithms:Adversary")
    assert on_digits["lr_d"] == 1e-3
    assert on_digits["lr"] == default_hyperparameters("digits", "erm")["lr"]


def test_without_a_registry_a_class_has_the_common_ones():
    assert [field.name for field in fields(declare("New", None))] == [field.name for field in fields(Hyperparameters)]
    assert draw(declare("New", None), "PACS", 1) == draw(Hyperparameters, "PACS", 1)


def test_defaults_of_the_file_win_over_ours():
    values = {"lr": 1e-4, "batch_size": 16}
    registry = SimpleNamespace(default_hparams=lambda *_: values, random_hparams=lambda *_: values)
    assert declare("New", registry)().lr == 1e-4
    assert declare("New", registry)().batch_size == 16


def test_a_sweep_stores_the_absolute_path_of_a_file(published, monkeypatch):
    monkeypatch.chdir(published)
    spec = SweepSpec(algorithms=("algorithms.py:Align", "erm"))
    assert spec.algorithms == (f"{published}/algorithms.py:Align", "erm")
    assert canonical_algorithms(spec) == ("algorithms:Align", "erm")
