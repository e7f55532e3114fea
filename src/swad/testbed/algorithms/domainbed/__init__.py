"""Algorithms in DomainBed's form: a class with `update(minibatches, unlabeled=None)` and `predict(x)`, run unchanged.

``FILE:CLASS`` names one. `files` finds and imports it, `stand_ins` is what its file imports from `domainbed`, `hparams`
reads its hyperparameters, `adapter` makes it an `Algorithm`, and `state` saves and restores everything it holds.
"""
