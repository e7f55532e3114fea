"""Table 7 and the settings behind the other tables, read from the code that uses them, with the paper's beside."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from swad.averaging.ema import EMA
from swad.averaging.valley import LossValley
from swad.testbed.algorithms.hyperparameters import Choice, Constant, Hyperparameters, Power, search_range
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.averages.registry import Plan
from swad.testbed.data import benchmarks
from swad.testbed.paper.paper_config import PAPER_DATASETS
from swad.testbed.paper.reproduction import PaperRuns, Reproduction
from swad.testbed.paper.trainings import SWA_WEIGHTS
from swad.testbed.results import published
from swad.testbed.results.labels import algorithm_label
from swad.testbed.results.report import Report
from swad.testbed.results.tables import PAPER, Cell, Row, Table
from swad.testbed.sweep import appendix_b3
from swad.testbed.sweep.search import PAPER_GRID, grid_points
from swad.testbed.training.lr_schedule import cyclic_lr
from swad.util.names import counted

HYPERPARAMETERS = {
    "batch size": "batch_size",
    "learning rate": "lr",
    "ResNet dropout": "dropout",
    "weight decay": "weight_decay",
}
"""Our hyperparameters by the paper's name, in the order of Table 7."""

SYMBOLS = {"alpha": "α", "eps": "ε", "rho": "ρ", "weight": "w_max"}
"""How the paper writes the hyperparameters of appendix B.3."""

COMPARISON = "same as the paper"
"""Group of the rows that say whether a setting is the paper's."""


def search_space_table() -> Table:
    """Build Table 7 from the hyperparameters and the grid that searches use."""
    entry = published.table(7)
    declared = {field.name: field for field in dataclasses.fields(Hyperparameters)}
    ours, paper, same = [], [], []
    for row in entry.rows:
        name = HYPERPARAMETERS[row.name]
        field = declared[name]
        texts = (
            notation(field.default),
            notation(search_range(field, "PACS")),
            notation(PAPER_GRID.get(name, field.default)),
        )
        printed = tuple(str(value) for value in row.values)
        ours.append(Row(row.name, tuple(Cell(text=text) for text in texts)))
        paper.append(Row(row.name, tuple(Cell(text=text) for text in printed), PAPER))
        same.append(Row(row.name, tuple(map(_comparison, texts, printed)), COMPARISON))
    n_points = len(grid_points(PAPER_GRID))
    n_targets = sum(len(benchmarks.get(name).domains) for name in PAPER_DATASETS)
    exceptions = [
        f"{name}: {label} {notation(search_range(declared[HYPERPARAMETERS[label]], name))} in DomainBed’s search"
        for name in PAPER_DATASETS
        for label in HYPERPARAMETERS
        if search_range(declared[HYPERPARAMETERS[label]], name)
        != search_range(declared[HYPERPARAMETERS[label]], "PACS")
    ]
    notes = [
        "Ours are read from the code that searches. U: uniform distribution; [...]: one of these values.",
        f"The grid has {n_points} points x {n_targets} targets = {n_points * n_targets} runs for one algorithm; the "
        "paper says 396.",
        *(f"{exception}." for exception in exceptions),
    ]
    return Table(f"Table 7: {entry.title}", entry.columns, (*ours, *paper, *same), tuple(notes), "Hyperparameter")


def notation(value: Any) -> str:
    """Write a value or a search range as Table 7 does.

    >>> notation(5e-5), notation(1e-4), notation(Power(10, -5, -3.5)), notation(Choice((0, 0.1, 0.5)))
    ('5e-5', '1e-4', '10^U(-5,-3.5)', '[0, 0.1, 0.5]')
    """
    if isinstance(value, Power):
        return f"{value.base:g}^U({value.low:g},{value.high:g})"
    if isinstance(value, Constant):
        return notation(value.value)
    if isinstance(value, Choice | tuple):
        values: Iterable[float] = value.values if isinstance(value, Choice) else value
        return f"[{', '.join(map(notation, values))}]"
    if isinstance(value, int | float):
        text = f"{value:e}" if 0 < abs(value) < 1e-3 else f"{value:g}"
        return re.sub(r"\.?0*e([+-])0*", r"e\1", text)
    return str(value)


def _comparison(ours: str, printed: str) -> Cell:
    """Compare two settings by their numbers: 0 is 0.0, and blanks do not matter."""
    return Cell(text="yes" if _numbers(ours) == _numbers(printed) else f"no: {ours}, not {printed}")


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


# ------------------------------------------------------------ appendices B.1 and B.3


def _default(function: Callable[..., Any], parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


def _hyperparameter(algorithm: str, name: str) -> Any:
    return getattr(get_algorithm(algorithm).Hyperparameters(), name)


def _settings() -> list[tuple[str, Any, Any]]:
    """Return (setting, ours, the paper's) of appendices B.1 and B.3."""
    rows: list[tuple[str, Any, Any]] = [
        ("SWAD: N_s", _default(LossValley, "n_converge"), 3),
        ("SWAD: N_e", _default(LossValley, "n_tolerance"), 6),
    ]
    for name in PAPER_DATASETS:
        defaults = benchmarks.get(name).defaults
        rows += [
            (f"{name}: r", 1 + defaults.tolerance_ratio, 1.2 if name == "VLCS" else 1.3),
            (f"{name}: iterations", defaults.steps, 15000 if name == "DomainNet" else 5000),
            (f"{name}: evaluate every", defaults.evaluate_every, {"VLCS": 50, "DomainNet": 500}.get(name, 100)),
        ]
    return [
        *rows,
        *(
            (f"{algorithm_label(algorithm)}: {SYMBOLS.get(name, name)}", _hyperparameter(algorithm, name), value)
            for algorithm, chosen in appendix_b3.CHOSEN.items()
            for name, value in chosen.items()
        ),
        ("EMA: decay", _default(EMA, "decay"), 0.99),
    ]


def method_settings_table() -> Table:
    """Build the table of the settings that appendices B.1 and B.3 give in their text."""
    rows = tuple(
        Row(name, (Cell(text=notation(ours)), Cell(text=notation(paper)), _comparison(notation(ours), notation(paper))))
        for name, ours, paper in _settings()
    )
    return Table(
        "Settings of appendices B.1 and B.3",
        ("Ours", "Paper", "Same"),
        rows,
        ("Ours are the defaults in the code.",),
        "Setting",
    )


# ------------------------------------------------------------ the solvers of Table 8


def solver_table(dataset: str, plan: Plan) -> Table:
    """Build the table of the settings with which Table 8's solvers were trained on a dataset."""
    cycle = max(1, plan.steps // SWA_WEIGHTS)
    cyclic = dataclasses.replace(plan, cycle=cycle)
    valley = (_default(LossValley, "n_converge"), _default(LossValley, "n_tolerance"), 1 + plan.tolerance_ratio)
    low = round(1 / _default(cyclic_lr, "low"))
    rows = {
        "ERM": ("constant", "none: the step with the best validation accuracy"),
        "SAM": ("constant", f"none, as ERM; ρ = {notation(_hyperparameter('sam', 'rho'))}"),
        "SWA w/ cyclic": (
            f"lr to lr/{low} every {_steps(cycle)} from step {cyclic.late}",
            _window(cyclic.late, plan.steps, cycle),
        ),
        "SWA w/ const": ("constant", _window(plan.late, plan.steps, cycle)),
        "SWAD": ("constant", "every step from t_s to t_e; N_s = {}, N_e = {}, r = {:g}".format(*valley)),
    }
    return Table(
        f"Settings of the solvers on {dataset}",
        ("Learning rate", "Weights that are averaged"),
        tuple(Row(name, tuple(Cell(text=text) for text in texts)) for name, texts in rows.items()),
        (
            "The paper: SWAs collect 10 weights from the last 20 % of training, in cycles of 2 %. It gives no bounds "
            f"of the cyclic learning rate; lr/{low} is our choice.",
        ),
    )


def _window(start: int, end: int, interval: int) -> str:
    n = (end - start) // interval
    return f"{counted(n, 'weight')}: every {_steps(interval)} after step {start}, to step {end}"


def _steps(number: int) -> str:
    return "step" if number == 1 else f"{number} steps"


def _build(paper_runs: PaperRuns) -> Report:
    return Report((search_space_table(), method_settings_table()))


ITEMS = (Reproduction("table7", published.table(7).title, lambda config: (), _build),)
