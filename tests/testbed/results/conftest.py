from pathlib import Path

import pytest

from helpers.measured_runs import write_measured_run
from helpers.run_tree import make_tree, write_run
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import find_runs


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PACS, four targets, two trials, all finished."""
    return make_tree(tmp_path_factory.mktemp("runs"), trials=2)


@pytest.fixture(scope="session")
def runs(tree: Path) -> list[RunData]:
    return find_runs(tree)


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> list[RunData]:
    """An unfinished run, one that never converged, a repeated one, and a target without trial 1."""
    root = tmp_path_factory.mktemp("faulty")
    write_run(root / "a", target="photo", finished=False)
    write_run(root / "b", target="sketch", converges=False)
    write_run(root / "c", target="cartoon")
    write_run(root / "d", target="cartoon")
    write_run(root / "e", target="cartoon", trial=1)
    return find_runs(root)


@pytest.fixture
def measured_runs(tmp_path: Path) -> list[RunData]:
    """Two runs with measured flatness and planes, targets photo and art."""
    return [write_measured_run(tmp_path / "a"), write_measured_run(tmp_path / "b", target="art", factor=3.0)]
