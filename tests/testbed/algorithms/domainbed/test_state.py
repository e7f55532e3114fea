from __future__ import annotations

import io
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from swad.testbed.algorithms.domainbed.state import capture, holds_modules, restore

CPU = torch.device("cpu")


class Counter:
    __module__ = "domainbed.lib.misc"

    def __init__(self, count=0):
        self.count, self.parent = count, self


class Queue(nn.Module):
    __module__ = "domainbed.algorithms"

    def __init__(self, n=0):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("rows", torch.zeros(n, 2), persistent=False)
        self.seen = n


def saved(value):
    file = io.BytesIO()
    torch.save(capture(value), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 0.5, "text", [1, (2, None)], {"a": {1: [2]}}, {1, 2}, np.float64(0.5)),
        deque([1, 2, 3], maxlen=5),
    ],
)
def test_plain_values_come_back(value):
    restored = restore(None, saved(value), CPU)
    assert restored == value


def test_arrays_and_tensors_come_back():
    value = {"array": np.arange(3), "tensor": torch.arange(3.0)}
    restored = restore({}, saved(value), CPU)
    assert np.array_equal(restored["array"], value["array"])
    assert torch.equal(restored["tensor"], value["tensor"])


def test_a_leaf_tensor_stays_the_one_that_an_optimizer_has():
    weight = torch.zeros(2, requires_grad=True)
    state = saved(weight)
    with torch.no_grad():
        weight += 1
    assert restore(weight, state, CPU) is weight
    assert weight.tolist() == [0, 0]


def test_a_tensor_with_a_graph_is_saved_without_it():
    weight = torch.ones(2, requires_grad=True)
    assert restore(weight * 2, saved(weight * 2), CPU).tolist() == [2, 2]


def test_a_deque_keeps_its_length():
    assert restore(deque(maxlen=3), saved(deque([1, 2], maxlen=3)), CPU).maxlen == 3


def test_objects_of_the_file_are_restored_in_place_and_others_are_constant():
    counter, generator = Counter(3), object()
    state = saved([counter, generator])
    other = [Counter(), generator]
    restored = restore(other, state, CPU)
    assert restored[0] is other[0]
    assert restored[0].count == 3
    assert restored[0].parent is restored[0]
    assert restored[1] is generator


def test_modules_of_the_file_come_back_with_attributes_and_grown_buffers():
    queue, fresh = Queue(5), Queue()
    restore(fresh, saved(queue), CPU)
    assert fresh.rows.shape == (5, 2)
    assert fresh.seen == 5
    assert torch.equal(fresh.linear.weight, queue.linear.weight)
    with pytest.raises(ValueError, match="there is no weight of shape"):
        restore(nn.Linear(3, 3), saved(nn.Linear(2, 2)), CPU)


def test_optimizers_come_back():
    linear = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(linear.parameters())
    linear(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    fresh = torch.optim.Adam(linear.parameters())
    restore([fresh], saved([optimizer]), CPU)
    assert fresh.state_dict()["state"][0]["step"] == 1


def test_what_holds_a_module_is_known():
    assert holds_modules(capture([{"a": nn.Linear(1, 1)}]))
    assert not holds_modules(capture([{"a": torch.ones(1)}]))
