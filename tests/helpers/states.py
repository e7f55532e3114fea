"""State dicts: equal up to rounding, or to the bit."""

import torch


def assert_close(ours, twin):
    assert ours.keys() == twin.keys()
    for name in twin:
        torch.testing.assert_close(ours[name], twin[name], rtol=1e-6, atol=1e-7)


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
