"""`help()` of the averages names every parameter, and the loop of docs/trainers.md resumes as it says."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
import torch

import swad
from helpers import ROOT
from helpers.averages import Net
from helpers.states import assert_equal
from helpers.torch_versions import require_testbed

NAMES = [
    "SWAD",
    "SWA",
    "SMA",
    "EMA",
    "LAWA",
    "WSM",
    "LossValley",
    "AverageGroup",
    "merge",
    "update_bn",
    "testbed.SegmentLog",
    "averaged_weights",
    "integrations.lightning.AverageCallback",
    "integrations.lightning.SWADCallback",
    "integrations.transformers.AverageCallback",
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
    if module == "testbed":
        require_testbed()
    packages = {"integrations.lightning": "lightning.pytorch", "integrations.transformers": "transformers.trainer"}
    if module in packages:
        pytest.importorskip(packages[module])
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


def run_loop(n_steps, resume):
    """Run the loop of the page in a fresh model, whose batches depend only on the step."""

    def batches(step):
        return torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(step))

    def loss_of(model, batch):
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

    torch.manual_seed(0)
    model = Net()
    (code, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "trainers.md").read_text(), re.DOTALL)
    names = {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), 0.01),
        "resume": resume,
        "n_steps": n_steps,
        "micro_batches": batches,
        "loss_of": loss_of,
        "validate": lambda model: loss_of(model, batches(0)[0]).detach(),
        "train_loader": list(batches(1)),
    }
    exec(code.replace("% 100", "% 10"), names)
    return names["averager"]


@pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")
def test_the_loop_of_the_page_resumes_to_the_last_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = run_loop(80, resume=False)
    want = torch.load("averaged.pt", weights_only=True)
    run_loop(30, resume=False)
    resumed = run_loop(80, resume=True)
    assert resumed.step == whole.step == 80
    assert_equal(torch.load("averaged.pt", weights_only=True), want)
