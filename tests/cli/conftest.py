from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from helpers.commands import swad


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> tuple[Path, str]:
    """A small demo: four runs of 40 steps, made once for all test processes."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, printed = root / "demo", root / "demo.txt"
    with (root / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            printed.write_text(swad("demo", "--trial", "0", "--steps", "40", "--output", folder, fresh=True).stdout)
    return folder, printed.read_text()


@pytest.fixture
def own_dataset(tmp_path_factory) -> Path:
    """Three domains of two classes with eight images each."""
    from PIL import Image

    root = tmp_path_factory.mktemp("data") / "mine"
    for d, domain in enumerate(("east", "north", "south")):
        for c, label in enumerate(("cat", "dog")):
            (root / domain / label).mkdir(parents=True)
            for i in range(8):
                Image.new("RGB", (16, 16), (30 * i, 100 * c, 80 * d)).save(root / domain / label / f"{i}.png")
    return root
