from __future__ import annotations

import os
import subprocess
import sys

import pytest

from swad.testbed.algorithms import AlgorithmError
from swad.testbed.algorithms.domainbed import files
from swad.testbed.algorithms.registry import canonical_name, get_algorithm, list_algorithms

METHOD = """
from domainbed import networks
from torch import nn
class Algorithm(nn.Module): ...
class {name}(Algorithm):
    def update(self, minibatches, unlabeled=None): ...
    def predict(self, x): return self.network(x)
"""


def write(folder, name="New", text=METHOD, file="algorithms.py"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text.format(name=name))
    return folder / file


def test_a_class_is_found_by_path_and_by_name_without_executing_its_file(tmp_path, capsys):
    path = write(tmp_path / "a+b", text=METHOD + "raise RuntimeError")
    assert canonical_name(f"{path}:New") == canonical_name("algorithms:New") == "algorithms:New"
    assert str(path) in os.environ["SWAD_ALGORITHMS"]  # for the processes that this one starts
    assert not capsys.readouterr().err


def test_two_files_of_one_name_are_told_apart_by_their_classes(tmp_path):
    first, second = write(tmp_path / "first"), write(tmp_path / "second", "Other")
    assert canonical_name(f"{first}:New") == "algorithms:New"
    assert files.find(canonical_name(f"{second}:Other")) == second
    third = write(tmp_path / "third")
    with pytest.raises(AlgorithmError, match=f"must be in one file, got {first}, {third}: rename one of the files"):
        canonical_name(f"{third}:New")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("algorithms:Aling", "there is no class 'Aling' in .*algorithms.py: did you mean 'Align'?"),
        ("algorithms:xyz", "there is no class 'xyz' in .*algorithms.py: choose one of ERM, ERMOf2020, .*"),
        (
            "fishr:Fishr",
            "there is no file fishr.py for the algorithm fishr:Fishr: name it or its folder in SWAD_ALGORITHMS",
        ),
        (
            "nowhere/algorithms.py:ERM",
            "an algorithm .* is named PATH/algorithms.py:CLASS, but there is no /.*nowhere/.*",
        ),
    ],
)
def test_a_name_that_does_not_exist_is_one_line(name, message):
    with pytest.raises(AlgorithmError, match=message.replace("?", r"\?")):
        canonical_name(name)


def test_that_a_file_is_executed_is_said_once_before_it_is(published, capsys):
    get_algorithm("algorithms:ERM")
    get_algorithm("algorithms:Align")
    path = published / "algorithms.py"
    assert capsys.readouterr().err == f"executing {path} and what it imports: code that is not part of swad\n"


def test_stand_ins_are_there_only_while_a_file_is_imported():
    get_algorithm("algorithms:ERM")
    assert not [name for name in sys.modules if name.partition(".")[0] == "domainbed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import a_missing.part", "line 1: .*; install it with: pip install a_missing"),
        (
            "from domainbed.losses import CE",
            "line 1: .*; name the file inside the folder `domainbed` of its own repository",
        ),
        ("\n1 / 0", "line 2: ZeroDivisionError: division by zero; correct the file"),
    ],
)
def test_a_file_that_cannot_be_imported_names_line_and_remedy(text, message, tmp_path):
    path = write(tmp_path / "mine", text=text + METHOD)
    with pytest.raises(AlgorithmError, match=f"cannot import {path}, {message}"):
        get_algorithm(f"{path}:New")


def test_a_syntax_error_names_its_line(tmp_path):
    with pytest.raises(AlgorithmError, match=r"cannot read .*algorithms.py, line 8: .*; correct the file"):
        canonical_name(f"{write(tmp_path / 'mine', text=METHOD + 'def')}:New")


def test_a_file_in_a_repository_finds_its_neighbors(tmp_path):
    root = tmp_path / "code" / "domainbed"
    write(root / "lib", text="def own(): return 3", file="misc.py")
    write(root, text="class Projection: size = 5", file="networks.py")
    write(root / "algorithms", text="SHIFT = 2", file="base.py")
    path = write(
        root / "algorithms",
        text="from .base import SHIFT\nfrom domainbed.lib import misc\nfrom domainbed.networks import Projection\n"
        "from domainbed.networks import Featurizer\nTOTAL = misc.own() + SHIFT + Projection.size\n" + METHOD,
    )
    canonical_name(f"{path}:New")
    module, registry = files.load(path)
    assert module.TOTAL == 10
    assert module.Featurizer.__module__ == "swad.testbed.algorithms.domainbed.stand_ins"
    assert registry is None


def test_a_folder_of_a_repository_lists_none_of_its_files_as_our_algorithms(published, tmp_path):
    write(tmp_path, text="", file="datasets.py")
    write(tmp_path)
    code = "from swad.testbed.algorithms.registry import list_algorithms as names; print(*names())"
    environment = os.environ | {"SWAD_ALGORITHMS": str(tmp_path)}
    listed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert listed.stdout.split() == list(list_algorithms())
