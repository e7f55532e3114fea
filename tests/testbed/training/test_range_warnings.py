from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

import swad
from swad.testbed.training.range_warnings import range_warnings

NEVER_FELL = "because the validation loss never fell below it: train longer or evaluate more often"
FELL_LATER = "but the validation loss fell later, to 0.2 at step 40: raise n_converge or evaluate less often"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.5, 0.6, 0.5, 0.7], f"swad starts at the first evaluation (step 10), {NEVER_FELL}"),
        ([0.5, 0.6, 0.6, 0.2], f"swad starts at the first evaluation (step 10), {FELL_LATER}"),
        ([0.5, 0.4, 0.6, 0.2], None),
        ([1.2, 1.1, 1.2, 0.9], "swad starts at step 20 with a validation loss of 1.1, not below chance (0.6931)"),
        ([0.5, 0.6, 0.2, 0.1], "swad: the average began at update 10, but 2 of the 2 losses since are far below those"),
        ([0.5, 0.4, 0.3, 0.2], "the validation loss never converged for swad, so it averages only the end of training"),
    ],
)
def test_ranges_that_start_too_early(losses, expected):
    model = nn.Linear(2, 2)
    average = swad.SWAD(model, n_converge=2)
    by_step = dict(zip((10, 20, 30, 40), losses, strict=True))
    for step in range(1, 41):
        average.update_parameters(model)
        if step in by_step:
            average.observe(by_step[step])
    training = SimpleNamespace(averages={"swad": average}, valley=lambda name: average.rule)
    texts = range_warnings(training, by_step, n_classes=2)
    assert [text.startswith(expected) for text in texts] == [True] * (expected is not None)
