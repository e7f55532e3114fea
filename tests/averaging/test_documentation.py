"""`help()` of the averages names every parameter."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import swad

NAMES = [
    "SWAD",
    "SWA",
    "SMA",
    "EMA",
    "LossValley",
    "AverageGroup",
    "SegmentLog",
    "update_bn",
    "fit_on_val",
    "integrations.lightning.SWADCallback",
    "integrations.transformers.SWADCallback",
    "integrations.timm.ModelSwad",
]
CALLED_BY_USERS = (
    "update_parameters",
    "update",
    "attach",
    "observe",
    "copy_to",
    "average_parameters",
    "state_dict",
    "load_state_dict",
    "count_replays",
)
INHERITED_FROM_TRAINERS = {"state_dict", "load_state_dict"}


def resolve(name):
    module, _, attribute = name.rpartition(".")
    if not module:
        return getattr(swad, attribute)
    package = module.rpartition(".")[2]
    if package != "timm":
        pytest.importorskip({"lightning": "lightning.pytorch", "transformers": "transformers.trainer"}[package])
    return getattr(importlib.import_module(f"swad.{module}"), attribute)


def undocumented(function):
    """Return the parameters that Args does not name, and the names there that are no parameters."""
    section = (inspect.getdoc(function) or "").partition("Args:\n")[2]
    named = re.findall(r"^    (\w+): \S", section, re.MULTILINE)
    return set(inspect.signature(function).parameters) - {"self"} ^ set(named)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_documented(name):
    documented = resolve(name)
    assert not undocumented(documented)
    if not inspect.isclass(documented):
        return
    skipped = INHERITED_FROM_TRAINERS if name.startswith("integrations") else set()
    for method in CALLED_BY_USERS:
        if method not in skipped and inspect.isfunction(function := getattr(documented, method, None)):
            assert not undocumented(function), method
