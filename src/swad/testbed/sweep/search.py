"""The hyperparameters that a sweep tries: one point is the values that a run sets besides the defaults.

    defaults    one point: nothing is set
    grid        every combination of the given values
    random      random draws, the same in every trial
    paper       the grid of the paper's Table 7, 18 points, searched on the first trial; the chosen point is used for
                the other trials
    domainbed   DomainBed's random draws, independent in every trial; the first is the defaults

>>> len(grid_points(PAPER_GRID)), grid_points({"lr": (0.1, 0.2)})
(18, [{'lr': 0.1}, {'lr': 0.2}])
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swad.testbed.algorithms.hyperparameters import Hyperparameters, draw
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data import benchmarks

if TYPE_CHECKING:
    from swad.testbed.sweep.spec import SweepSpec

Point = dict[str, Any]
"""Values of hyperparameters by name."""

PAPER_GRID: Mapping[str, tuple[float, ...]] = {
    "lr": (1e-5, 3e-5, 5e-5),
    "dropout": (0.0, 0.1, 0.5),
    "weight_decay": (1e-4, 1e-6),
}
"""The search space of the paper's Table 7; the batch size is the default."""


def points(spec: SweepSpec, algorithm: str, dataset: str, trial: int) -> list[Point]:
    """Return the points that a sweep searches for an algorithm on a dataset in one trial."""
    cls = get_algorithm(algorithm).Hyperparameters
    if spec.protocol == "defaults":
        return [{}]
    if spec.protocol == "domainbed":
        return [draw(cls, dataset, number, trial, spec.seeding) for number in range(spec.draws)]
    if spec.protocol == "random":
        return [draw(cls, dataset, number, 0, spec.seeding) for number in range(1, spec.draws + 1)]
    return grid_points(_for_algorithm(cls, spec.grid or paper_grid(dataset)))


def paper_grid(dataset: str) -> dict[str, tuple[float, ...]]:
    """Return the paper's grid with learning rates in proportion to the dataset's default.

    The paper's rates go up to 5e-5, the default where a pretrained network is fine-tuned. A small network that starts
    from random weights learns nothing at such rates.

    >>> paper_grid("PACS") == PAPER_GRID, paper_grid("digits")["lr"]
    (True, (0.0006, 0.0018, 0.003))
    """
    scale = benchmarks.get(dataset).defaults.lr / max(PAPER_GRID["lr"])
    return {**PAPER_GRID, "lr": tuple(float(f"{scale * lr:.6g}") for lr in PAPER_GRID["lr"])}


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return every combination of the values."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _for_algorithm(cls: type[Hyperparameters], grid: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Give the weight decay of a grid to the predictor's side of DANN and CDANN, which have one for each side."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {"wd_g" if name == "weight_decay" and "wd_g" in names else name: values for name, values in grid.items()}
