from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 40 steps, target paper, with snapshots."""
    pytest.importorskip("sklearn")
    from tiny_runs import finished

    return finished(tmp_path_factory.mktemp("tiny"))
