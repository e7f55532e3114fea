from __future__ import annotations

import pytest
import torch
from torch import nn

from swad import update_bn
from swad.tensors.batch_norms import batch_norms, is_bn_statistic, running_statistics


def test_running_statistics_are_means_and_variances_and_no_counts():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.SyncBatchNorm(4)))
    assert batch_norms(model) == [model[1], model[2][0]]
    wanted = [getattr(norm, name) for norm in batch_norms(model) for name in ("running_mean", "running_var")]
    assert [id(tensor) for tensor in running_statistics(model)] == [id(tensor) for tensor in wanted]
    assert [name for name in model.state_dict() if is_bn_statistic(name)] == [
        f"{norm}.{name}" for norm in ("1", "2.0") for name in ("running_mean", "running_var", "num_batches_tracked")
    ]


def test_a_norm_without_running_statistics_has_none():
    model = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False), nn.GroupNorm(2, 4))
    assert batch_norms(model) == running_statistics(model) == []


def test_norms_that_are_no_batch_norms_of_torch_have_statistics_too():
    own = nn.Module()  # such as the norms of DSON, with a row for every domain
    own.register_buffer("running_mean", torch.zeros(3, 4))
    own.register_buffer("not_running_mean", torch.zeros(4))
    model = nn.Sequential(nn.BatchNorm2d(4, affine=False), own)
    assert batch_norms(model) == [model[0]]
    assert running_statistics(model)[2:] == [own.running_mean]


DATA = torch.randn(50, 3, 6, 6, generator=torch.Generator().manual_seed(0)) * 2 + 1


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())


@pytest.mark.parametrize(
    "batches",
    [
        list(DATA.split(16)),  # a short last batch
        [(x, torch.zeros(len(x))) for x in DATA.split(16)],
        [[x] for x in DATA.split(50)],
    ],
)
def test_the_mean_is_the_mean_over_all_rows(batches):
    model = net()
    with torch.no_grad():
        want = model[0](DATA).mean((0, 2, 3))
    update_bn(batches, model)
    torch.testing.assert_close(model[1].running_mean, want)
    assert model[1].momentum == 0.1
    assert model.training


def test_one_batch_gives_the_exact_variance():
    model = net()
    with torch.no_grad():
        want = model[0](DATA).var((0, 2, 3))
    update_bn([DATA], model)
    torch.testing.assert_close(model[1].running_var, want)


def test_mappings_and_forward_fn():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, *, pixels, scale):
            return self.inner(pixels * scale)

    by_keyword, by_function = Keyword(), Keyword()
    update_bn([{"pixels": DATA, "scale": 2.0}], by_keyword)
    update_bn([DATA], by_function, forward_fn=lambda model, batch: model(pixels=batch, scale=2.0))
    assert torch.equal(by_keyword.inner[1].running_mean, by_function.inner[1].running_mean)


def test_a_batch_norm_may_be_called_by_keyword():
    class Keyword(nn.BatchNorm1d):
        def __call__(self, x):
            return super().__call__(input=x)

    model = nn.Sequential(Keyword(2))
    update_bn([torch.tensor([[1.0, 2.0], [3.0, 4.0]])], model)
    assert model[0].running_mean.tolist() == [2.0, 3.0]


def test_modes_and_statistics_survive_an_error():
    model = net().eval()
    model[1].running_mean.fill_(7)
    with pytest.raises(TypeError, match="pass forward_fn"):
        update_bn([DATA, "nonsense"], model)
    assert model[1].running_mean.tolist() == [7.0] * 4
    assert not model[1].training
    assert not model[1]._forward_pre_hooks
    with pytest.raises(ValueError, match="loader gave none"):
        update_bn([], model)
    assert model[1].running_mean.tolist() == [7.0] * 4


def test_a_model_without_batch_norm_is_left_alone():
    update_bn(iter(()), nn.Linear(2, 2))


def test_swapped_arguments_are_named():
    with pytest.raises(TypeError, match="takes the loader first and then the model, got a list as model"):
        update_bn(net(), [DATA])


def test_a_compiled_model_is_not_compiled_for_every_batch():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    model, eager = net(), net()
    whole = torch.compile(model, backend=backend, fullgraph=True)  # too many compilations would raise
    update_bn(DATA.split(2), whole)
    update_bn(DATA.split(2), eager)
    assert not compiled
    assert torch.equal(model[1].running_mean, eager[1].running_mean)
    whole(DATA)
    assert len(compiled) == 1


def test_a_loader_without_end_gives_some_batches():
    def endless():
        while True:
            yield torch.tensor([[1.0], [3.0]])
            yield torch.tensor([[9.0], [11.0]])

    model = nn.Sequential(nn.BatchNorm1d(1))
    update_bn(endless(), model, n_batches=4)
    assert model[0].running_mean.item() == 6.0
    with pytest.raises(ValueError, match="n_batches must be at least 1, got 0"):
        update_bn(endless(), model, n_batches=0)
