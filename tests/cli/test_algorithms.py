"""`swad algorithms`."""

from __future__ import annotations

import re

from helpers import ROOT


def test_algorithms_are_listed_and_shown(here):
    from swad.testbed.algorithms.registry import list_algorithms

    listing = here("algorithms").stdout
    names = re.findall(r"^(\w+) +(?:19|20)\d\d ", listing, re.MULTILINE)
    assert tuple(names) == list_algorithms()
    for words in ("2016", "own optimizers", "Foret et al.", "+sam"):
        assert words in listing
    text = here("algorithms", "show", "DANN").stdout
    for words in ("CE(h(z), y) - λ D", "Ganin et al.", "mlp_depth", "one of 3, 4, 5", "int 2^U(0, 3)", "0: same as lr"):
        assert words in text
    both = here("algorithms", "sam+coral").stdout  # `show` may be left out
    for words in ("same mean and covariance", "worst point nearby", "gamma", "rho", "0.05"):
        assert words in both


def test_a_narrow_terminal_shows_whole_names_and_meanings(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = here("algorithms", "show", "dann").stdout
    rows = text.partition("--set")[2]
    assert "…" not in rows
    for words in ("weight_decay", "5e-05", "L2 penalty of", "mlp_dropout"):
        assert words in rows


def test_classes_of_domainbeds_form_are_listed_without_executing_them_and_shown(here, monkeypatch):
    folder = ROOT / "tests/testbed/algorithms/domainbed/published"
    monkeypatch.setenv("SWAD_ALGORITHMS", str(folder))
    monkeypatch.setenv("COLUMNS", "120")
    listing = here("algorithms")
    assert f"{folder}/algorithms.py, in DomainBed's form:" in listing.stdout
    assert "algorithms:ERM, algorithms:ERMOf2020, " in listing.stdout
    assert "executing" not in listing.stderr
    text = here("algorithms", "show", "algorithms:Adversary").stdout
    for words in ("A discriminator and the network", "lambda_", "as hparams_registry.py draws"):
        assert words in text
