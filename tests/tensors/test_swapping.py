"""Tensors are restored exactly."""

import pytest
import torch
from torch import nn

from swad.tensors.swapping import restored


def test_tensors_are_restored_after_an_error():
    weight = nn.Parameter(torch.randn(5))
    before = weight.detach().clone()
    with pytest.raises(ZeroDivisionError), restored([weight]):
        weight.data.add_(1)
        raise ZeroDivisionError
    assert weight.equal(before)
