"""Work grows linearly with the number of runs: four times the runs take at most four times the function calls."""

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path

import pytest

import synthetic_runs
from swad.testbed.results.accuracy_table import accuracy_table
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.figures.training import shown_runs
from swad.testbed.results.page.sweep import build_sweep
from swad.testbed.results.run_data import RunData
from swad.testbed.results.run_tables import ranges_table, selected_runs_table, timings_table
from swad.testbed.results.selection import collect_results


def runs_of(trials: int, draws: int) -> list[RunData]:
    count = 4 * trials * draws
    configs = synthetic_runs.configs(count, datasets=["PACS"], algorithms=["erm"], trials=trials)
    return [synthetic_runs.run_in_memory(name, config) for name, config in configs]


def explore(runs: list[RunData]) -> None:
    results = collect_results(runs)
    build_sweep(runs, results, [accuracy_table(each) for each in results])


WORK: dict[str, Callable[[list[RunData]], object]] = {
    "iid": lambda runs: collect_results(runs, "iid"),
    "oracle": lambda runs: collect_results(runs, "oracle"),
    "lodo": lambda runs: collect_results(runs, "lodo"),
    "tables": lambda runs: [selected_runs_table(each) for each in collect_results(runs)],
    "ranges": ranges_table,
    "timings": timings_table,
    "problems": find_problems,
    "curves": lambda runs: [shown_runs(each) for each in collect_results(runs)],
    "explorer": explore,
}


@pytest.fixture(scope="module")
def sizes() -> dict[str, tuple[list[RunData], list[RunData]]]:
    """Few and many runs, where the number of trials or of draws grows."""
    return {"trials": (runs_of(4, 1), runs_of(16, 1)), "draws": (runs_of(2, 2), runs_of(2, 8))}


@pytest.mark.parametrize("grows", ["trials", "draws"])
@pytest.mark.parametrize("name", WORK)
def test_work_grows_linearly(sizes: dict[str, tuple[list[RunData], list[RunData]]], name: str, grows: str) -> None:
    few, many = (calls(WORK[name], runs) for runs in sizes[grows])
    assert many < 4.4 * few


def calls(work: Callable[[list[RunData]], object], runs: list[RunData]) -> int:
    work(runs)  # what is computed once, such as imports, does not grow
    profile = cProfile.Profile()
    fresh = [RunData(Path(run.path), run.config, run.records, True, run.roles) for run in runs]
    profile.runcall(work, fresh)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
