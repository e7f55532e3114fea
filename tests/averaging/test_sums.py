"""The precision of sums."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from swad import SMA, SWAD

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


@pytest.mark.parametrize("make", [SWAD, lambda m: SMA(m, start=0)])
def test_a_bfloat16_model_is_averaged_in_float32(make):
    model = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    averager, twin = make(model), torch.zeros(64, 64, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 2001):
        with torch.no_grad():
            model.weight.copy_(1 + 0.01 * torch.randn(64, 64, generator=generator))
        averager.update_parameters(model)
        twin += model.weight.detach().double()
        if step % 100 == 0:
            if step == 100 and isinstance(averager, SWAD):
                twin = model.weight.detach().double().clone()
            averager.observe(1.0)
    mean = twin / averager.status.n_averaged
    sums = [total for total, _ in averager._parts()]
    assert all(s.values[0].dtype == torch.float32 for s in sums)
    got = sum(s.values[0] for s in sums).double() / sum(s.weight for s in sums)
    assert (got - mean).abs().max() < 1e-6  # a bfloat16 mean would be off by 4e-3
    assert averager.averaged_state()["weight"].dtype == torch.bfloat16


def test_a_float64_model_keeps_its_precision():
    model = nn.Linear(1, 1, bias=False).double()
    average = SMA(model, start=0)
    for value in (1.0, 1.0 + 1e-12):
        model.weight.data.fill_(value)
        average.update_parameters(model)
    assert average.averaged_state()["weight"].item() == 1.0 + 5e-13
