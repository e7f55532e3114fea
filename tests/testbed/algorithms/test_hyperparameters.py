"""Every default and search range equals the published one, which is written out here."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from swad.testbed.algorithms.hyperparameters import Constant, Hyperparameters, draw, fill, hyper, search_range
from swad.testbed.algorithms.registry import get_algorithm, list_algorithms

LR, SMALL_LR = "10^U(-5, -3.5)", "10^U(-4.5, -2.5)"
DECAY, SHARE = "10^U(-6, -2)", "one of 0, 0.1, 0.5"
GAMMA, LAMBDA, STEPS = "10^U(-1, 1)", "10^U(-1, 5)", "int 10^U(0, 4)"
FIXED = "0, not searched"

# The default, the range on PACS, and the range on RotatedMNIST if it differs.
COMMON = {
    "lr": (5e-5, LR, SMALL_LR),
    "batch_size": (32, "int 2^U(3, 5.5)", "int 2^U(3, 9)"),
    "weight_decay": (0, DECAY, FIXED),
    "dropout": (0, SHARE, FIXED),
}
ADVERSARIAL = {
    "weight_decay": (0, FIXED),
    "lr_g": (0, LR, SMALL_LR),
    "lr_d": (0, LR, SMALL_LR),
    "wd_g": (0, DECAY, FIXED),
    "wd_d": (0, DECAY),
    "adversary": (1, "10^U(-2, 2)"),
    "d_steps": (1, "int 2^U(0, 3)"),
    "grad_penalty": (0, "10^U(-2, 1)"),
    "beta1": (0.5, "one of 0, 0.5"),
    "mlp_width": (256, "int 2^U(6, 10)"),
    "mlp_depth": (3, "one of 3, 4, 5"),
    "mlp_dropout": (0, SHARE),
}
OWN = {
    "arm": {"batch_size": (8, "8, not searched", "int 2^U(3, 9)"), "context_width": (64, "64, not searched")},
    "cdann": ADVERSARIAL,
    "coral": {"gamma": (1, GAMMA)},
    "cutmix": {"alpha": (1, "1, not searched"), "p": (0.5, "0.5, not searched")},
    "dann": ADVERSARIAL,
    "dmg": {"overlap": (0.1, "10^U(-2, 0)"), "mask_lr": (1e-4, "0.0001, not searched")},
    "dson": {
        "mix": ("statistics", "statistics, not searched"),
        "share": ("network", "network, not searched"),
        "start": (0.999, "0.999, not searched", "0.5, not searched"),
        "mixture_lr": (1e-3, "0.001, not searched"),
    },
    "eisnet": {
        "jigsaw": (0.7, "10^U(-1, 0.5)"),
        "triplet": (0.5, "10^U(-1, 0.5)"),
        "margin": (2, "2, not searched"),
        "whole": (0.9, "0.9, not searched"),
        "grayscale": (0.1, "0.1, not searched"),
        "ema": (0.999, "0.999, not searched"),
        "queue_size": (1024, "1024, not searched"),
    },
    "er": {
        "lambda_d": (0.1, "10^U(-2, 0)"),
        "lambda_c": (0.05, "10^U(-2.5, -0.5)"),
        "lambda_cp": (0.001, "10^U(-4, -2)"),
        "lr_c": (0.1, "0.1, not searched"),
        "mlp_width": (256, "256, not searched"),
        "mlp_dropout": (0.5, "0.5, not searched"),
        "warm_up": (0, FIXED),
    },
    "erm": {},
    "group_dro": {"eta": (0.01, "10^U(-3, -1)")},
    "i_mixup": {"alpha": (0.2, GAMMA)},
    "irm": {"penalty": (100, LAMBDA), "anneal": (500, STEPS)},
    "masf": {
        "inner_lr": (1e-5, "10^U(-6, -3)"),
        "metric_lr": (1e-5, "10^U(-6, -4)"),
        "inner_clip": (2, "2, not searched"),
        "global_weight": (1, "10^U(-1, 1)"),
        "local_weight": (0.005, "10^U(-4, -1)"),
        "temperature": (2, "2, not searched"),
        "margin": (20, "one of 10, 20"),
    },
    "metareg": {
        "preparation": (0.2, "0.2, not searched"),
        "unroll": (20, "20, not searched"),
        "inner_lr": (1e-3, "10^U(-4, -1)"),
        "meta_lr": (1e-5, "10^U(-6, -4)"),
    },
    "miro": {"penalty": (0.1, "one of 0.01, 0.1, 1")},
    "mixstyle": {"alpha": (0.1, "0.1, not searched"), "p": (0.5, "0.5, not searched")},
    "mixup": {"alpha": (0.2, GAMMA)},
    "mldg": {"beta": (1, GAMMA)},
    "mmd": {"gamma": (1, GAMMA)},
    "mtl": {"ema": (0.99, "one of 0.5, 0.9, 0.99, 1")},
    "padain": {"p": (0.01, "0.01, not searched")},
    "pi_model": {
        "weight": (1, "one of 1, 10, 100, 300"),
        "ramp_up": (1333, "1333, not searched"),
        "input_noise": (0, FIXED, "0.15, not searched"),
    },
    "rsc": {"feature_drop": (1 / 3, "U(0, 0.5)"), "batch_drop": (1 / 3, "U(0, 0.5)")},
    "sagm": {"rho": (0.05, "one of 0.01, 0.02, 0.05, 0.1"), "matching": (0.001, "one of 0.0005, 0.001")},
    "sagnet": {"w_adv": (0.1, "10^U(-2, 1)")},
    "sam": {"rho": (0.05, "one of 0.01, 0.02, 0.05, 0.1")},
    "vat": {"eps": (1, GAMMA), "alpha": (1, "1, not searched"), "xi": (0.1, "0.1, not searched")},
    "vrex": {"penalty": (10, LAMBDA), "anneal": (500, STEPS)},
}
BATCH_ON_DOMAINNET = "int 2^U(3, 5)"


def fields(name):
    return dataclasses.fields(get_algorithm(name).Hyperparameters)


def test_every_algorithm_is_in_the_table():
    assert tuple(OWN) == list_algorithms()


@pytest.mark.parametrize("name", [*OWN, "coral+sam"])
def test_defaults_and_ranges_are_the_published_ones(name):
    wanted = COMMON | OWN["coral"] | OWN["sam"] if name == "coral+sam" else COMMON | OWN[name]
    assert {one.name: one.default for one in fields(name)} == {key: row[0] for key, row in wanted.items()}
    for dataset, column in (("PACS", 1), ("VLCS", 1), ("DomainNet", 1), ("RotatedMNIST", -1), ("digits", -1)):
        found = {one.name: str(search_range(one, dataset)) for one in fields(name)}
        expected = {key: row[column] for key, row in wanted.items()}
        if dataset == "DomainNet" and name != "arm":
            expected["batch_size"] = BATCH_ON_DOMAINNET
        assert found == expected, dataset


def test_hyperparameters_check_themselves():
    kind = get_algorithm("erm").Hyperparameters
    with pytest.raises(ValueError, match="no hyperparameter lrr; choose from lr, batch_size, weight_decay, dropout"):
        fill(kind, {"lrr": 1})
    for bad in ({"lr": 0}, {"lr": -1}, {"batch_size": 0}, {"batch_size": 1.5}, {"dropout": 1}, {"lr": "x"}):
        assert len(kind(**bad).problems()) == 1, bad
    assert kind() == kind(lr=5e-5, batch_size=32, weight_decay=0.0, dropout=0.0)


GOLDEN = json.loads(Path(__file__).with_name("domainbed_draws.json").read_text())
NAMES = {"Mixup": "i_mixup", "GroupDRO": "group_dro"}


@pytest.mark.parametrize("seeding", ["2020", "present"])
def test_draws_are_domainbeds(seeding):
    """The file holds what DomainBed's own code of 2020-09-30 and 2024-12-11 draws, by its names."""
    compared = 0
    for key, wanted in GOLDEN[seeding].items():
        algorithm, dataset, number, trial = key.split("/")
        name = NAMES.get(algorithm, algorithm)
        drawn = draw(get_algorithm(name).Hyperparameters, dataset, int(number), int(trial), seeding)
        for declared in fields(name):
            # Values that DomainBed draws and never uses, such as the batch size of ARM, are constant here.
            if not isinstance(search_range(declared, dataset, seeding), Constant):
                assert drawn[declared.name] == wanted[declared.metadata["domainbed"] or declared.name], (key, declared)
                compared += 1
    assert compared == 474


def test_draw_zero_is_the_defaults_and_trials_differ():
    kind = get_algorithm("erm").Hyperparameters
    for seeding in ("2020", "present"):
        assert draw(kind, "PACS", 0, 2, seeding) == {}
        assert (
            draw(kind, "PACS", 3, 1, seeding) == draw(kind, "PACS", 3, 1, seeding) != draw(kind, "PACS", 3, 2, seeding)
        )


def test_both_ranges_of_i_mixup_are_named():
    kind = get_algorithm("i_mixup").Hyperparameters
    (alpha,) = (one for one in dataclasses.fields(kind) if one.name == "alpha")
    assert str(search_range(alpha, "PACS", "2020")) == "10^U(-1, -1)"
    assert str(search_range(alpha, "PACS")) == "10^U(-1, 1)"
    assert {draw(kind, "PACS", number, 0, "2020")["alpha"] for number in range(1, 9)} == {0.1}


def test_values_above_the_maximum_are_named():
    kind = get_algorithm("cutmix").Hyperparameters
    assert fill(kind, {"p": 1.5}).problems() == ["p must be a number from 0 to 1, got 1.5"]
    assert not fill(kind, {"p": 1}).problems()


def test_a_hyperparameter_can_be_a_word():
    @dataclass(frozen=True)
    class Words(Hyperparameters):
        mix: str = hyper("inputs", Constant("inputs"), "what is mixed", options=("inputs", "outputs"))

    assert not Words().problems()
    assert not Words(mix="outputs").problems()
    assert Words(mix="both").problems() == ["mix must be one of inputs, outputs, got 'both'"]
    assert Words(mix=1).problems() == ["mix must be one of inputs, outputs, got 1"]
    assert {draw(Words, "PACS", number)["mix"] for number in (1, 2)} == {"inputs"}
    assert str(Constant("inputs")) == "inputs, not searched"
