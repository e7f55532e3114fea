"""The searches of the paper's appendix B.3 as a plan: the hyperparameters of single methods, on PACS, trial 0.

The paper searched them "independently in PACS, based on the values suggested from each paper". It names all values
that were tried for the Π-model only; for the others it names the chosen one, and the values around it are ours:

    Π-model     w_max 1, 10, 100, 300   as the paper names them
    SAM         ρ 0.01, 0.02, 0.05, 0.1 the range of DomainBed's search
    MixStyle    α 0.1, 0.2, 0.3         p 0.5; those of the MixStyle paper
    VAT         ε 0.5, 1, 2             α 1
    Mixup       α 0.1, 0.2, 0.4         the range that the Mixup paper recommends on ImageNet, and the chosen one
    CutMix      p 0.5, 1                α 1; those of the CutMix paper on CIFAR and ImageNet
    EMA         decay 0.9, 0.99, 0.999  averages of one training: no run of their own

>>> [spec.algorithms for spec in specs({"algorithms": ("sam", "erm")})]
[('sam',), ('erm',)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swad.testbed.algorithms import registry as algorithms
from swad.testbed.results.labels import algorithm_label
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList
from swad.testbed.results.selection import run_scores
from swad.testbed.results.tables import Cell, Row, Table
from swad.testbed.sweep.search import grid_points
from swad.testbed.sweep.spec import SweepSpec
from swad.util.statistics import mean

NAME = "appendix-b3"
"""`swad sweep run appendix-b3` trains this plan."""

SEARCHES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "pi_model": {"weight": (1, 10, 100, 300)},
    "sam": {"rho": (0.01, 0.02, 0.05, 0.1)},
    "mixstyle": {"alpha": (0.1, 0.2, 0.3), "p": (0.5,)},
    "vat": {"eps": (0.5, 1.0, 2.0), "alpha": (1.0,)},
    "mixup": {"alpha": (0.1, 0.2, 0.4)},
    "cutmix": {"alpha": (1.0,), "p": (0.5, 1.0)},
}
"""Values by algorithm and hyperparameter."""

EMA_DECAYS = (0.9, 0.99, 0.999)
"""The paper chose 0.99."""

_ERM = "erm"
_FIXED = ("protocol", "grid", "draws", "seeding", "choose_by")


def is_plan(plan: Path | None) -> bool:
    """Whether a command names this plan, and not a file."""
    return plan is not None and str(plan) == NAME and not plan.exists()


def find_problems(stated: Mapping[str, Any]) -> list[str]:
    """List the stated fields of a spec that this plan does not leave open, one sentence each."""
    problems = [f"{name} is part of the plan {NAME}: leave it out" for name in _FIXED if name in stated]
    known = (*SEARCHES, _ERM)
    for name in stated.get("algorithms", ()):
        try:
            if algorithms.canonical_name(name) not in known:
                problems.append(f"the plan {NAME} has no search for {name}: it has {', '.join(known)} (erm for EMA)")
        except algorithms.AlgorithmError as error:
            problems.append(str(error))
    return problems


def specs(stated: Mapping[str, Any] | None = None) -> list[SweepSpec]:
    """Return the searches, one spec for each algorithm.

    Args:
        stated: Fields that replace those of the plan: algorithms to search, datasets, targets, trials, data, options.
    """
    stated = dict(stated or {})
    names = [algorithms.canonical_name(name) for name in stated.pop("algorithms", (*SEARCHES, _ERM))]
    fields: dict[str, Any] = {"datasets": ("PACS",), "trials": (0,), "averages": ("swad",), **stated}
    searches = [
        SweepSpec(**{**fields, "algorithms": (name,), "protocol": "grid", "grid": SEARCHES[name]})
        for name in names
        if name in SEARCHES
    ]
    if _ERM in names:
        decays = tuple(f"ema:as=ema_{decay:g},decay={decay:g}" for decay in EMA_DECAYS)
        searches.append(SweepSpec(**{**fields, "algorithms": (_ERM,), "averages": (*fields["averages"], *decays)}))
    return searches


def is_search(specs: Sequence[SweepSpec]) -> bool:
    """Whether specs are those of this plan."""
    return bool(specs) and all(
        spec.grid == SEARCHES[name] if (name := spec.algorithms[0]) in SEARCHES else "ema_0.99" in str(spec.averages)
        for spec in specs
    )


def choices_table(runs: Iterable[RunData]) -> Table:
    """Build the table of all values with their mean accuracy on source validation, over all runs that have them.

    The value with the highest mean is chosen, the first among equals. The paper does not say how it chose.
    """
    scores: dict[str, dict[str, list[float]]] = {
        name: {_text(name, point): [] for point in grid_points(grid)} for name, grid in SEARCHES.items()
    }
    scores[_ERM] = {_decay_text(decay): [] for decay in EMA_DECAYS}
    runs = RunList.of(runs)
    averages = {"best", *(f"ema_{decay:g}" for decay in EMA_DECAYS)}
    validation = run_scores(runs, "iid", sorted(averages))
    for number, run in enumerate(runs):
        weights = {_decay_text(decay): f"ema_{decay:g}" for decay in EMA_DECAYS}
        if run.algorithm in SEARCHES:
            weights = {_text(run.algorithm, {**_chosen(run.algorithm), **run.hyperparameters}): "best"}
        for text, average in weights.items():
            accuracy = validation.get((number, average))
            if accuracy is not None and text in scores.get(run.algorithm, {}):
                scores[run.algorithm][text].append(accuracy)
    rows = []
    for name, by_value in scores.items():
        means = {text: 100 * mean(values) for text, values in by_value.items() if values}
        chosen = {
            "here": max(means, key=lambda text: means[text], default=None),
            "paper": _text(name, _chosen(name)) if name in SEARCHES else _decay_text(0.99),
        }
        for text, value in means.items():
            by = ", ".join(who for who, choice in chosen.items() if choice == text)
            label = "EMA" if name == _ERM else algorithm_label(name)
            cells = (Cell(value, decimals=2), Cell(len(by_value[text]), decimals=0), Cell(text=by))
            rows.append(Row(f"{label}: {text}", cells))
    note = "Mean over runs of the accuracy on source validation: of the best step, or of the EMA."
    return Table("Appendix B.3", ("Validation, %", "Runs", "Chosen"), tuple(rows), (note,), corner="Value")


def _chosen(algorithm: str) -> dict[str, float]:
    """Return what the paper chose, which are the defaults here."""
    defaults = algorithms.get_algorithm(algorithm).Hyperparameters()
    return {name: getattr(defaults, name) for name in SEARCHES[algorithm]}


def _decay_text(decay: float) -> str:
    return f"decay {decay:g}"


def _text(algorithm: str, values: Mapping[str, Any]) -> str:
    """Name the values that a search varies."""
    return ", ".join(f"{name} {values[name]:g}" for name, tried in SEARCHES[algorithm].items() if len(tried) > 1)
