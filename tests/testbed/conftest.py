"""Two small runs of one target, trained once."""

from pathlib import Path

import pytest

from swad.testbed.training.config import RunConfig
from swad.testbed.training.loop import train


@pytest.fixture(scope="session")
def two_trials(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("measured")
    for trial in (0, 1):
        train(
            RunConfig.from_options(
                dataset="digits",
                target="paper",
                output=root / f"paper-{trial}",
                trial=trial,
                steps=20,
                evaluate_every=10,
                averages=("swa",),
                snapshots=(5, 10),
            )
        )
    return root
