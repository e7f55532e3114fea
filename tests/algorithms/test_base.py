"""The defaults of the base class: dropout, pending buffers and compiled forwards."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_algorithms import batch_for, make, noise_for


def test_the_dropout_mask_keeps_the_mean():
    noise = make("erm", dropout=0.1).draw_randomness(torch.Generator().manual_seed(0), 1)["dropout_mask"]
    assert noise.unique().tolist() == pytest.approx([0, 1 / 0.9])
    assert noise.mean().item() == pytest.approx(1, abs=0.02)
    assert make("erm").draw_randomness(torch.Generator(), 1) == {}


def test_pending_buffers_are_written_after_the_step():
    algorithm = make("group_dro")
    held, before = algorithm.q, algorithm.q.clone()
    algorithm.loss(batch_for(algorithm), noise_for(algorithm))
    assert held.equal(before)
    pending = algorithm.pending_buffers["q"]
    algorithm.apply_pending_buffers()
    assert algorithm.q is held  # a captured graph reads the same tensor
    assert held.equal(pending)
    assert not held.equal(before)
    assert algorithm.pending_buffers == {}


def test_both_ways_to_call_the_network_are_compiled():
    algorithm = make("erm", dropout=0.5)
    calls = []

    def compile(function):
        def compiled(*arguments):
            calls.append(function.__name__)
            return function(*arguments)

        return compiled

    algorithm.compile_forward(compile)
    batch = batch_for(algorithm)
    algorithm.scores(batch, {})
    algorithm.scores(batch, noise_for(algorithm))
    assert calls == ["scores", "features"]
