"""How far the statistics of accuracies can be trusted: coverage in simulations, and differences of real runs.

    swad demo --trial 0:9 --output demo10
    python benchmarks/accuracy_statistics.py demo10 --json benchmarks/results/accuracy-statistics-cpu.json

Simulations are of 4 targets and 3 trials, as in the paper's protocol. Of real runs, it measures how differences between
methods correlate between the targets of a trial, and how often a method differs from itself on other trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from measurements import header, make_parser, write
from swad.testbed.results.compare import compare, is_clear, units_of_methods
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results

Accuracies = Mapping[tuple[str, int], float]

TARGETS = ["a", "b", "c", "d"]


def accuracies_of(table: np.ndarray) -> dict[tuple[str, int], float]:
    """Return accuracies by target and trial from a table of targets x trials."""
    names = TARGETS[: len(table)]
    return {
        (name, trial): float(table[row, trial]) for row, name in enumerate(names) for trial in range(table.shape[1])
    }


def paired(first: Accuracies, second: Accuracies, unit: str) -> Any:
    """Return the test of the difference between two methods."""
    (test,) = compare(units_of_methods({"second": second, "first": first}), "second", unit).itertuples()
    return test


def coverage(gains: np.ndarray, truth: float, unit: str) -> bool:
    """Return whether the interval of simulated gains (targets x trials) holds the truth."""
    test = paired(accuracies_of(gains), accuracies_of(0 * gains), unit)
    return bool(test.low <= truth <= test.high)


def simulate(n: int) -> dict[str, float]:
    """Return the share of intervals that hold the true gain, which is 0."""
    rng = np.random.default_rng(0)
    held: dict[str, list[bool]] = {}
    for _ in range(n):
        shared, own = rng.normal(0, 0.2**0.5, (1, 3)), rng.normal(0, 0.8**0.5, (4, 3))
        for unit in ("runs", "trials"):
            held.setdefault(f"correlation of 0.2 between targets, over {unit}", []).append(
                coverage(shared + own, 0.0, unit)
            )
        varying = rng.normal(0, 1, (4, 1)) + rng.normal(0, 1, (4, 3))
        for unit in ("runs", "targets"):
            held.setdefault(f"gains that vary between targets, over {unit}", []).append(coverage(varying, 0.0, unit))
    return {name: round(float(np.mean(values)), 3) for name, values in held.items()}


def correlation(table: np.ndarray) -> float:
    """Return the mean correlation between two targets over trials."""
    matrix = np.corrcoef(table)
    return float(np.mean([matrix[i, j] for i, j in combinations(range(len(table)), 2)]))


def correlations(first: Accuracies, second: Accuracies, targets: list[str], trials: list[int]) -> tuple[float, float]:
    """Return how differences correlate between the targets of a trial, and the jackknife's standard error."""
    table = np.array([[first[target, trial] - second[target, trial] for trial in trials] for target in targets])
    left_out = np.array([correlation(np.delete(table, trial, axis=1)) for trial in range(len(trials))])
    error = np.sqrt((len(trials) - 1) * np.mean((left_out - left_out.mean()) ** 2))
    return round(correlation(table), 2), round(float(error), 2)


def differs_from_itself(accuracies: Accuracies, targets: list[str], trials: list[int], unit: str, n: int) -> float:
    """Return how often three trials of a method differ from three others of it at the 5 % level."""
    rng = np.random.default_rng(0)
    clear = 0
    for _ in range(n):
        drawn = rng.permutation(trials)[:6]
        first, second = (
            {(target, number): accuracies[target, trial] for target in targets for number, trial in enumerate(half)}
            for half in (drawn[:3], drawn[3:])
        )
        clear += is_clear(paired(first, second, unit))
    return round(clear / n, 4)


def measure_runs(folder: Path, n: int) -> dict[str, Any]:
    """Return the correlations, the difference between SWAD and ERM (best), and the null of every method."""
    (results,) = collect_results(find_runs(folder))
    accuracies = {method: results.units[method].dropna().to_dict() for method in results.methods}
    targets, trials = list(results.targets), sorted({trial for _, trial in accuracies["SWAD"]})
    baselines = ("ERM (best)", "ERM (last)")
    differences = {}
    for unit in ("runs", "trials"):
        test = paired(accuracies["SWAD"], accuracies[baselines[0]], unit)
        points = [round(100 * value, 2) for value in (test.difference, test.low, test.high)]
        differences[unit] = {"points, low, high": points, "n": test.n, "p": test.p}
    return {
        "trials": len(trials),
        "correlation between targets, standard error": {
            f"{label} - {baseline}": correlations(accuracies[label], accuracies[baseline], targets, trials)
            for baseline in baselines
            for label in accuracies
            if label not in baselines
        },
        "SWAD - ERM (best)": differences,
        "a method differs from itself": {
            unit: {label: differs_from_itself(each, targets, trials, unit, n) for label, each in accuracies.items()}
            for unit in ("runs", "trials")
        },
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="?", help="Runs on one dataset with six trials or more.")
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=400, help="Draws of two times three trials.")
    arguments = parser.parse_args()
    report = {**header(), "coverage of 95 % intervals": simulate(arguments.simulations)}
    print(report["coverage of 95 % intervals"])
    if arguments.runs is not None:
        report["runs"] = measure_runs(arguments.runs, arguments.draws)
        print(report["runs"])
    write(report, arguments.json)


if __name__ == "__main__":
    main()
