"""The arithmetic of the published code, with its double counts."""

from __future__ import annotations

from helpers.valleys import observe_all
from swad.averaging.valley import Span


def test_worked_example_of_the_reference_double_count():
    losses = [60, 50, 24, 23, 22, 20, 21, 22, 21, 22, 21, 22, 23, 21, 90, 90, 90, 90, 90, 90, 90]
    _, status = observe_all(losses, semantics="reference")
    assert status.spans == (Span(4, 5), Span(6, 6, 2), Span(7, 14))  # evaluations counted from 1


def test_reference_converged_at_the_first_evaluation_counts_it_three_times():
    _, status = observe_all([1.0] * 12, semantics="reference")
    assert status.spans[:2] == (Span(1, 1, 3), Span(2, 3, 2))
