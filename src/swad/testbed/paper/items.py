"""All items of the paper by name, in its order."""

from __future__ import annotations

from swad.testbed.paper import (
    cost,
    dataset_tables,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    ranking,
    robustness_table,
    search_spaces,
    sensitivity,
    split_tables,
    target_tables,
)
from swad.testbed.paper.reproduction import Reproduction
from swad.util.names import did_you_mean

_MODULES = (
    dataset_tables,
    split_tables,
    robustness_table,
    search_spaces,
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

_ITEMS = [item for module in _MODULES for item in module.ITEMS]
_TABLES = [item for item in _ITEMS if item.name.startswith("table")]

ITEMS: dict[str, Reproduction] = {
    item.name: item for item in (*sorted(_TABLES, key=lambda item: int(item.name[len("table") :])), *_ITEMS)
}


def get_items(names: list[str]) -> list[Reproduction]:
    """Return items by name; `all` stands for every one."""
    if "all" in names:
        return list(ITEMS.values())
    unknown = [name for name in names if name not in ITEMS]
    if unknown:
        hint = did_you_mean(unknown[0], [*ITEMS, "all"]) or f"choose from {', '.join(ITEMS)}, or all"
        raise ValueError(f"the paper has no item {', '.join(unknown)}: {hint}")
    return [ITEMS[name] for name in dict.fromkeys(names)]
