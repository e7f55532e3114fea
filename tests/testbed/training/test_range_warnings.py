from __future__ import annotations

from types import SimpleNamespace

import pytest

from swad.testbed.training.range_warnings import range_warnings

NEVER_FELL = "because the validation loss never fell below it: train longer or evaluate more often"
FELL_LATER = "but the validation loss fell later, to 0.2 at step 40: raise n_converge or evaluate less often"


@pytest.mark.parametrize(
    ("start", "losses", "expected"),
    [
        (10, [0.5, 0.6, 0.5, 0.7], f"swad starts at the first evaluation (step 10), {NEVER_FELL}"),
        (10, [0.5, 0.6, 0.6, 0.2], f"swad starts at the first evaluation (step 10), {FELL_LATER}"),
        (20, [0.5, 0.4, 0.6, 0.2], None),
        (20, [1.2, 1.1, 1.2, 0.9], "swad starts at step 20 with a validation loss of 1.1, not below chance (0.6931)"),
    ],
)
def test_ranges_that_start_too_early(start, losses, expected):
    average = SimpleNamespace(status=SimpleNamespace(start_step=start))
    training = SimpleNamespace(averages={"swad": average}, valley=lambda name: SimpleNamespace(converged=True))
    texts = range_warnings(training, dict(zip((10, 20, 30, 40), losses, strict=True)), n_classes=2)
    assert [text.startswith(expected) for text in texts] == [True] * (expected is not None)
