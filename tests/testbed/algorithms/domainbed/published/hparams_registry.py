"""Defaults and random draws, as the file of a paper would have them."""

import numpy as np
from domainbed.lib import misc


def _all(algorithm, dataset, seed):
    values = {}

    def add(name, default, draw):
        values[name] = default, draw(np.random.RandomState(misc.seed_hash(seed, name)))

    add("resnet_dropout", 0.0, lambda r: r.choice([0.0, 0.1, 0.5]))
    add("nonlinear_classifier", False, lambda r: False)
    small = dataset in ("RotatedMNIST", "ColoredMNIST")
    add("lr", 1e-3 if small else 5e-5, lambda r: 10 ** r.uniform(-5, -3.5))
    add("weight_decay", 0.0, lambda r: 10 ** r.uniform(-6, -2))
    add("batch_size", 64 if small else 32, lambda r: int(2 ** r.uniform(3, 5.5)))
    if algorithm == "Align":
        add("gamma", 1, lambda r: 10 ** r.uniform(-1, 1))
        add("centered", True, lambda r: bool(r.choice([True, False])))
        add("kernel", "mean", lambda r: "mean")
    if algorithm == "Adversary":
        add("lambda", 0.1, lambda r: 10 ** r.uniform(-2, 0))
        add("d_steps", 1, lambda r: int(2 ** r.uniform(0, 3)))
        add("lr_d", 1e-3 if small else 5e-5, lambda r: 10 ** r.uniform(-5, -3.5))
        add("mlp_width", 16, lambda r: int(2 ** r.uniform(3, 5)))
        add("mlp_depth", 3, lambda r: int(r.choice([3, 4])))
        add("mlp_dropout", 0.1, lambda r: r.choice([0.0, 0.1, 0.5]))
    if algorithm == "Teacher":
        add("restart", 7, lambda r: int(r.randint(5, 10)))
    return values


def default_hparams(algorithm, dataset):
    return {name: default for name, (default, _) in _all(algorithm, dataset, 0).items()}


def random_hparams(algorithm, dataset, seed):
    return {name: drawn for name, (_, drawn) in _all(algorithm, dataset, seed).items()}
