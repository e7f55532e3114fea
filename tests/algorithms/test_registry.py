"""Algorithms are found by name, and names that do not exist fail with a list of those that do."""

from __future__ import annotations

import pytest

from swad import algorithms as package
from swad.algorithms.registry import AlgorithmError, canonical_name, get_algorithm, list_algorithms


def test_names_are_matched_without_case_and_dashes():
    assert "erm" in list_algorithms()
    assert get_algorithm("ERM") is get_algorithm("erm")
    assert canonical_name("E-R-M") == "erm"
    with pytest.raises(AlgorithmError, match=r"there is no algorithm 'ern'; choose one of .*erm"):
        get_algorithm("ern")


def test_every_listed_file_is_an_algorithm_and_the_shared_modules_are_not():
    names = list_algorithms()
    assert not {"base", "hyperparameters", "registry"} & set(names)
    assert not any(name.startswith("_") or "+" in name for name in names)
    assert all(get_algorithm(name).__module__ == f"swad.algorithms.{name}" for name in names)


def test_a_missing_folder_and_a_duplicate_name_are_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / "missing")])
    with pytest.raises(AlgorithmError, match=r"must name existing folders, got .*missing: correct the variable"):
        list_algorithms()
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "coral.py").write_text("")
    with pytest.raises(AlgorithmError, match=r"names must be unique, but there are 2 files coral\.py: rename yours"):
        list_algorithms()


@pytest.mark.parametrize("name", ["coral+irm", "sam+sam", "coral+irm+sam", "irm+coral"])
def test_only_sam_can_be_combined_with_another_algorithm(name):
    with pytest.raises(AlgorithmError, match="only SAM can be combined with another algorithm"):
        canonical_name(name)


@pytest.mark.parametrize("name", ["corals+sam", "coral+", "+sam"])
def test_an_unknown_name_lists_the_algorithms(name):
    with pytest.raises(AlgorithmError, match=r"there is no algorithm .*; choose one of .*coral.*, or NAME\+sam"):
        canonical_name(name)
