"""Algorithms are found by name, and a name or a file that is wrong fails with one line that says what to do."""

from __future__ import annotations

import sys

import pytest

from swad.testbed import algorithms as package
from swad.testbed.algorithms.registry import AlgorithmError, _load, canonical_name, get_algorithm, list_algorithms


def test_names_are_matched_without_case_and_dashes():
    assert "erm" in list_algorithms()
    assert get_algorithm("ERM") is get_algorithm("erm")
    assert canonical_name("E-R-M") == "erm"
    with pytest.raises(AlgorithmError, match=r"there is no algorithm 'ermm': did you mean 'erm'\?$"):
        get_algorithm("ermm")


def test_every_listed_file_is_an_algorithm_and_the_shared_modules_are_not():
    names = list_algorithms()
    assert not {"base", "hyperparameters", "registry"} & set(names)
    assert not any(name.startswith("_") or "+" in name for name in names)
    assert all(get_algorithm(name).__module__ == f"swad.testbed.algorithms.{name}" for name in names)


def test_a_missing_folder_and_a_duplicate_name_are_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / "missing")])
    with pytest.raises(AlgorithmError, match=r"must name existing folders, got .*missing: correct the variable"):
        list_algorithms()
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "coral.py").write_text("")
    with pytest.raises(AlgorithmError, match=r"names must be unique, but there are 2 files coral\.py: rename yours"):
        list_algorithms()


@pytest.mark.parametrize("name", ["coral+irm", "sam+sam", "sam+sagm", "coral+irm+sam", "irm+coral"])
def test_only_sam_can_be_combined_with_another_algorithm(name):
    with pytest.raises(AlgorithmError, match="only SAM or SAGM can be combined with another algorithm"):
        canonical_name(name)


@pytest.mark.parametrize("name", ["foo+sam", "coral+", "+sam"])
def test_an_unknown_name_lists_the_algorithms(name):
    rule = r"no algorithm .*; choose one of .*coral.*, NAME\+sam or NAME\+sagm; .* name its folder in SWAD_ALGORITHMS$"
    with pytest.raises(AlgorithmError, match=rule):
        canonical_name(name)


@pytest.mark.parametrize(
    ("name", "meant"), [("corals+sam", "coral"), ("Goup DRO", "group_dro"), ("mxstyle", "mixstyle")]
)
def test_a_misspelled_name_gets_a_suggestion(name, meant):
    with pytest.raises(AlgorithmError) as caught:
        canonical_name(name)
    assert str(caught.value) == f"there is no algorithm {name!r}: did you mean {meant!r}?"


# --- the user's own files -----------------------------------------------------------------------------------------

FILE = """
from dataclasses import dataclass
from swad.testbed.algorithms.base import Algorithm, Recipe
from swad.testbed.algorithms.hyperparameters import Hyperparameters, Constant, hyper

{decorator}
class MineHyperparameters(Hyperparameters):
    gamma: float = {value}

class Mine(Algorithm):
    Hyperparameters = MineHyperparameters
    {member}

ALGORITHM = {algorithm}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return a function that writes the file of an algorithm `mine` into a folder where algorithms are looked up."""
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text):
        (tmp_path / "mine.py").write_text(text)
        return tmp_path / "mine.py"

    yield write
    sys.modules.pop("swad.testbed.algorithms.mine", None)
    _load.cache_clear()


def filled(
    decorator="@dataclass(frozen=True)", value='hyper(2.0, Constant(2.0), "a weight")', member="", algorithm="Mine"
):
    return FILE.format(decorator=decorator, value=value, member=member, algorithm=algorithm)


def test_an_algorithm_of_your_own_needs_no_paper(mine):
    mine(filled())
    assert get_algorithm("mine").Hyperparameters().gamma == 2
    assert get_algorithm("mine").paper == ""
    assert get_algorithm("mine+sam").paper.startswith("With Foret")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            filled(value="2.0"),
            "MineHyperparameters.gamma in mine.py must be declared with hyper(), got 2.0: write "
            'gamma: float = hyper(2.0, Constant(2.0), "its meaning"); instead of Constant, a search may draw from '
            "Power, Uniform or Choice",
        ),
        (
            filled(decorator=""),
            "MineHyperparameters in mine.py must be a dataclass: put @dataclass(frozen=True) before the class",
        ),
        (
            filled(value='hyper(2, Constant(2), "a weight")'),
            "MineHyperparameters.gamma in mine.py is a float, but its default makes it an integer: write 2.0",
        ),
        (
            filled(value='hyper(-2.0, Constant(-2.0), "a weight")'),
            "the defaults of MineHyperparameters in mine.py must be valid, but gamma must be a number of at least 0, "
            "got -2.0",
        ),
        (filled(member="paper = None"), "Mine.paper in mine.py must be a string, got None"),
        (
            filled(member='needs = "two passes"'),
            "Mine.needs in mine.py must be a tuple, such as (\"two passes\",), got 'two passes'",
        ),
        (filled(member="own_recipe = {}"), "Mine.own_recipe in mine.py must be a Recipe, got {{}}"),
        (
            filled(member='own_recipe = Recipe(by_dataset={"PACS": Recipe(hyperparameters={"beta": 1})})'),
            "own_recipe in mine.py: there is no hyperparameter beta; "
            "choose from lr, batch_size, weight_decay, dropout, gamma",
        ),
        (
            filled(member="def loss(self, batch): ..."),
            "Mine.loss in mine.py must have the parameters self, batch, noise, got self, batch",
        ),
        (
            filled(member="def eval_group_size(self, hyperparameters): ..."),
            "Mine.eval_group_size in mine.py must have @classmethod and the parameters hyperparameters, got self, "
            "hyperparameters",
        ),
        (filled(algorithm="3"), "ALGORITHM must be a subclass of Algorithm, got 3 in mine.py"),
        (
            "",
            "a file of an algorithm must define ALGORITHM, but mine.py does not: add the line, or name a file of "
            "helpers _mine.py",
        ),
        ("x = 1\ndef f(:\n", "cannot import {file}, line 2: SyntaxError: invalid syntax; correct the file"),
        (
            "import os\n\nimport no_such_package\n",
            "cannot import {file}, line 3: ModuleNotFoundError: No module named 'no_such_package'; correct the file",
        ),
        (
            "def f():\n    1 / 0\nf()\n",
            "cannot import {file}, line 2: ZeroDivisionError: division by zero; correct the file",
        ),
    ],
)
def test_a_mistake_in_a_file_of_your_own_is_one_line(mine, text, message):
    file = mine(text)
    with pytest.raises(AlgorithmError) as caught:
        get_algorithm("mine")
    assert str(caught.value) == message.format(file=file)
    assert "mine" in list_algorithms()
    assert get_algorithm("coral")  # the others still work
