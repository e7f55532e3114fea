"""The fused update of all averages against one foreach call each; without a GPU, in Triton's interpreter."""

import pytest
import torch
from torch import nn

from helpers.triton_interpreter import DEVICE, INTERPRETED, runs_kernels
from swad import EMA, SWAD, AverageGroup

pytest.importorskip("triton", reason="needs triton")


def random_tensors() -> list[torch.Tensor]:
    shapes = [(1,), (4096,), (4097,), (3, 5), (16, 8, 3, 3), (20_000,)]
    made = [torch.randn(shape, device=DEVICE) for shape in shapes]
    made[4] = made[4].to(memory_format=torch.channels_last)
    return made


@runs_kernels
@pytest.mark.parametrize("rates", [[], [0.01], [0.01, 0.5]])
def test_sums_and_means_are_those_of_single_calls(rates):
    from swad.averaging._kernels import Table, add_and_blend, fits, to_device

    torch.manual_seed(0)
    live, sums, *means = (random_tensors() for _ in range(2 + len(rates)))
    wanted_sums = [a + b for a, b in zip(sums, live, strict=True)]
    wanted = [
        [torch.lerp(mean, value, rate) for mean, value in zip(mean_tensors, live, strict=True)]
        for mean_tensors, rate in zip(means, rates, strict=True)
    ]
    before = [tensor.clone() for tensor in live]
    assert fits(live, sums, means)
    add_and_blend(Table(live, sums, means), to_device(torch.tensor(rates), live[0].device))
    for tensor, same in zip(live, before, strict=True):
        assert torch.equal(tensor, same)
    for got, exact in zip([sums, *means], [wanted_sums, *wanted], strict=True):
        for a, b in zip(got, exact, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@runs_kernels
def test_what_the_kernel_cannot_read_does_not_fit():
    from swad.averaging._kernels import fits

    plain = torch.zeros(8, 4, device=DEVICE)
    assert fits([plain], [plain.clone()], [])
    assert not fits([plain], [plain.double()], [])
    assert not fits([plain], [torch.zeros(4, 8, device=DEVICE).t()], [])
    assert not fits([plain[:, ::2]], [torch.zeros(8, 4, device=DEVICE)[:, ::2]], [])
    assert not fits([torch.zeros(9, device=DEVICE)[1:]], [torch.zeros(8, device=DEVICE)], [])


@runs_kernels
@pytest.mark.skipif(INTERPRETED, reason="the choice of the kernel needs a GPU")
def test_a_group_with_an_ema_uses_the_kernel_and_equals_its_averages():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5)).cuda()
    group = AverageGroup(model, {"swad": SWAD(model), "ema": EMA(model), "slow": EMA(model, 0.999)})
    alone = {"swad": SWAD(model), "ema": EMA(model), "slow": EMA(model, 0.999)}
    for step in range(1, 41):
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.add_(torch.randn_like(tensor), alpha=0.01)
        group.update_parameters(model)
        for average in alone.values():
            average.update_parameters(model)
        if step % 10 == 0:
            group.observe(1.0)
            for average in alone.values():
                average.observe(1.0)
    assert [table is not None for table in group._fused._tables.values()] == [True]
    for name, average in alone.items():
        for key, value in average.averaged_state().items():
            torch.testing.assert_close(group[name].averaged_state()[key], value, rtol=1e-5, atol=1e-6)
