"""All items of the paper by name, in its order."""

from __future__ import annotations

from swad.experiments.reproduce import (
    cost,
    dataset_tables,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    ranking,
    robustness_table,
    sensitivity,
    settings,
    split_tables,
    target_tables,
)
from swad.experiments.reproduce.base import Reproduction
from swad.util.names import did_you_mean

_MODULES = (
    dataset_tables,
    split_tables,
    robustness_table,
    settings,
    target_tables,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    cost,
    ranking,
    sensitivity,
)

_ORDER = (
    *(f"table{number}" for number in range(1, 14)),
    *(f"figure{number}" for number in range(1, 6)),
    "cost",
    "ranking",
    "sensitivity",
)

_BY_NAME = {item.name: item for module in _MODULES for item in module.ITEMS}

ITEMS: dict[str, Reproduction] = {name: _BY_NAME[name] for name in _ORDER}


def get_items(names: list[str]) -> list[Reproduction]:
    """Return items by name; `all` stands for every one."""
    if "all" in names:
        return list(ITEMS.values())
    unknown = [name for name in names if name not in ITEMS]
    if unknown:
        hint = did_you_mean(unknown[0], [*ITEMS, "all"]) or f"choose from {', '.join(ITEMS)}, or all"
        raise ValueError(f"the paper has no item {', '.join(unknown)}: {hint}")
    return [ITEMS[name] for name in dict.fromkeys(names)]
