"""Which tensors of a model an average follows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.averages import Net, train
from swad import SMA, SWA, SWAD

pytestmark = pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning")


def test_a_mismatch_names_the_tensors():
    averager = SWAD(Net(4))
    with pytest.raises(ValueError, match=r"body\.0\.weight \(5, 3\) instead of \(4, 3\)"):
        averager.update_parameters(Net(5))
    with pytest.raises(ValueError, match=r"missing body\.0\.weight.*unknown weight, bias"):
        averager.update_parameters(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="missing"):
        averager.copy_to(nn.Linear(3, 2))


def test_frozen_parameters_are_not_averaged_and_cost_nothing():
    model = Net()
    model.body.requires_grad_(False)
    average = SMA(model, start=0)
    optimizer = torch.optim.SGD(model.head.parameters(), 0.1)
    train(model, optimizer, 3, after=lambda step: average.update_parameters(model))
    assert [tuple(s.shape) for s in average.trajectory.segment.values] == [(2, 4), (2,)]
    fresh = Net()
    average.copy_to(fresh)  # complete all the same
    assert torch.equal(fresh.body[0].weight, model.body[0].weight)
    model.body[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"body\.0\.weight is trainable now: pass include='\*'"):
        average.observe(1.0)


def test_tied_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

    model = Tied()
    average = SMA(model, start=0)
    for value in (1.0, 3.0):
        model.embed.weight.data.fill_(value)
        average.update_parameters(model)
    assert len(average.trajectory.segment.values) == 1
    average.copy_to(model)
    assert model.out.weight is model.embed.weight
    assert model.out.weight[0, 0].item() == 2.0
    model.load_state_dict(average.averaged_state(), strict=True)


def test_shared_modules_load_strictly():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.BatchNorm1d(3)
            self.second = self.first

    model = Shared()
    average = SMA(model, start=0)
    average.update_parameters(model)
    Shared().load_state_dict(average.averaged_state(), strict=True)


@pytest.mark.parametrize("persistent", [(False, True), (True, False)])
def test_an_averaged_state_has_only_the_persistent_name_of_a_shared_buffer(persistent):
    class Holder(nn.Linear):
        def __init__(self, buffer, persistent):
            super().__init__(2, 2)
            self.register_buffer("buffer", buffer, persistent=persistent)

    buffer = torch.zeros(3)
    model = nn.Sequential(*(Holder(buffer, each) for each in persistent))
    average = SMA(model, start=0)
    average.update_parameters(model)
    model.load_state_dict(average.averaged_state(), strict=True)


def test_patterns_choose_what_is_averaged():
    model = Net()
    average = SMA(model, start=0, include=["head.*", "body.0.*"], exclude="*.bias")
    assert list(average.tracked.averaged) == ["body.0.weight", "head.weight"]
    train(model, torch.optim.SGD(model.parameters(), 0.1), 5, after=lambda step: average.update_parameters(model))
    bias = model.head.bias.detach().clone()
    average.copy_to(model)
    assert torch.equal(model.head.bias, bias)
    with pytest.raises(ValueError, match=r"'tail\.\*' matches no tensor; names look like body\.0\.weight"):
        SMA(model, start=0, include="tail.*")
    with pytest.raises(ValueError, match="nothing to average"):
        SMA(model, start=0, exclude="*")


def test_an_averaged_state_has_the_extra_state_of_modules():
    class Counting(nn.Linear):
        calls = 0

        def get_extra_state(self):
            return {"calls": self.calls}

        def set_extra_state(self, state):
            self.calls = state["calls"]

    model, other = (nn.Sequential(*[Counting(2, 2)] * 2) for _ in range(2))  # one module under two names
    average = SMA(model, start=0)
    model[0].calls = 3
    average.update_parameters(torch.compile(model, backend="eager"))
    other.load_state_dict(average.averaged_state(), strict=True)
    assert other[0].calls == 3


def test_a_buffer_may_change_its_shape():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.register_buffer("seen", torch.zeros(3))

    model = Memory()
    average = SWA(model, start=0, end=2)
    for size in (2, 1, 4):
        model.seen = torch.full((size,), float(size))
        average.update_parameters(model)
        average.observe(1.0)
    assert average.averaged_state()["seen"].tolist() == [1.0]
    resumed = SWA(Memory(), start=0, end=2)
    resumed.load_state_dict(average.state_dict())
    assert resumed.averaged_state()["seen"].tolist() == [1.0]
    with pytest.raises(ValueError, match=r"of another shape seen \(1,\) instead of \(4,\)"):  # not by broadcasting
        average.copy_to(model)
    model.seen = torch.zeros(1)
    average.copy_to(model)
    assert model.seen.tolist() == [1.0]
    other = Memory()
    other.seen = torch.zeros(1)
    average.copy_to(other)
    assert other.seen.tolist() == [1.0]
    average.update_parameters(nn.DataParallel(model))  # looks all tensors up again


def test_patterns_match_every_name_of_a_tied_parameter():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)
            self.head.weight = self.embedding.weight

    assert list(SMA(Tied(), exclude="head.weight").tracked.averaged) == ["head.bias"]
    assert list(SMA(Tied(), include="head.*").tracked.averaged) == ["embedding.weight", "head.bias"]
    with pytest.raises(ValueError, match="nothing to average"):
        SMA(Tied(), exclude="head.*")


def test_names_are_canonical_under_compile_and_data_parallel():
    model = Net()
    compiled = torch.compile(model, backend="eager")
    average = SMA(compiled, start=0)
    average.update_parameters(model)  # the plain one, the compiled one: the same tensors
    average.update_parameters(compiled)
    average.update_parameters(nn.DataParallel(model))
    assert not any("_orig_mod" in name or "module" in name for name in average.averaged_state())
    plain = SMA(Net(), start=0)
    plain.load_state_dict(average.state_dict())


def test_a_compiled_model_trains_and_swaps():
    torch.manual_seed(0)
    model = Net()
    compiled = torch.compile(model, backend="aot_eager")
    average = SMA(compiled, start=0)
    train(compiled, torch.optim.SGD(model.parameters(), 0.1), 5, after=lambda step: average.update_parameters(compiled))
    x = torch.randn(4, 3)
    twin = Net()
    twin.load_state_dict(average.averaged_state())
    with torch.no_grad(), average.average_parameters(compiled):
        compiled.eval()
        torch.testing.assert_close(compiled(x), twin.eval()(x))


def test_a_replaced_parameter_is_noticed():
    model = Net()
    average = SMA(model, start=0)
    average.update_parameters(model)
    model.head.weight = nn.Parameter(torch.full((2, 4), 7.0))
    average.update_parameters(model)
    first = average.trajectory.segment.values[list(average.tracked.averaged).index("head.weight")]
    assert (first > 6).all()


HEAD = r"replaced head\.weight, head\.bias: build the average after changing the model"


@pytest.mark.parametrize(
    "read",
    [
        lambda average, model: average.observe(1.0),
        lambda average, model: average.copy_to(model),
        lambda average, model: average.copy_to(Net()),
        lambda average, model: average.averaged_state(),
        lambda average, model: average.average_parameters(model).__enter__(),
        lambda average, model: average.attach(torch.optim.SGD(model.parameters(), 0.1)),
    ],
)
def test_a_replaced_module_is_refused_where_the_average_is_read_or_evaluated(read):
    model = Net()
    average = SWAD(model)
    average.update_parameters(model)
    model.head = nn.Linear(4, 2)
    average.update_parameters(model)  # too frequent to look at all modules
    with pytest.raises(ValueError, match=HEAD) as error:
        read(average, model)
    assert "\n" not in str(error.value)


def test_a_replaced_frozen_module_is_refused():
    model = Net()
    model.head.requires_grad_(False)
    average = SWAD(model)
    average.update_parameters(model)
    model.head = nn.Linear(4, 2).requires_grad_(False)
    with pytest.raises(ValueError, match=HEAD):
        average.observe(1.0)


def test_added_and_removed_modules_are_refused():
    model = Net()
    average = SWAD(model)
    average.update_parameters(model)
    model.body.append(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"added body\.3\.weight, body\.3\.bias: build"):
        average.observe(1.0)
    del model.body[3]
    average.observe(1.0)
    model.head = nn.Identity()
    with pytest.raises(ValueError, match=r"removed head\.weight, head\.bias: build"):
        average.averaged_state()


def test_another_compatible_model_may_be_followed():
    model, other = Net(), Net()
    average = SWAD(model)
    average.update_parameters(model)
    average.update_parameters(other)
    average.observe(1.0)
    average.copy_to(other)


def test_wrapped_modules_and_shared_tensors_are_the_same_model():
    model = Net()
    average = SWAD(model)
    average.update_parameters(model)
    model.head = torch.compile(model.head, backend="eager")
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # a new module with the old tensors
    assert isinstance(model.body[1], nn.SyncBatchNorm)
    average.observe(1.0)
    model.body[1].running_mean = torch.full((4,), 7.0)
    average.update_parameters(model)
    assert average.averaged_state()["body.1.running_mean"].tolist() == [7.0] * 4


def test_a_replaced_buffer_is_noticed():
    model = Net()
    average = SMA(model, start=0)
    average.update_parameters(model)
    model.body[1].running_mean = torch.full((4,), 7.0)
    average.update_parameters(model)
    assert average.averaged_state()["body.1.running_mean"].tolist() == [7.0] * 4


def test_another_order_of_modules_is_matched_by_name():
    class Swapped(Net):
        def __init__(self):
            super().__init__()
            body = self.body
            del self.body
            self.body = body  # declared last now

    model, other = Net(), Swapped()
    average = SMA(model, start=0)
    average.update_parameters(model)
    assert next(iter(dict(other.named_parameters()))) == "head.weight"
    average.copy_to(other)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: SWAD(m, buffers="keep"), "one of copy, average, got 'keep'"),
        (lambda m: SWAD(nn.LazyLinear(3)), "lazy or on the meta device"),
    ],
)
def test_bad_settings_say_the_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make(nn.Linear(1, 1))
