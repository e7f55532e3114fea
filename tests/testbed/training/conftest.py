from __future__ import annotations

from pathlib import Path

import pytest

from helpers import few_digits
from swad.testbed.data.benchmarks import digits


@pytest.fixture(autouse=True)
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of this folder use few digits, unless a test is marked `all_digits`."""
    if not request.node.get_closest_marker("all_digits"):
        monkeypatch.setattr(digits, "render", few_digits.render)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an undisturbed short run, to compare disturbed ones with. Tests must not change it."""
    from helpers.runs import short
    from swad.testbed.training.loop import train

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "render", few_digits.render)
        return train(short(tmp_path_factory.mktemp("finished") / "run")).run_dir


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 3 domains of 2 classes of 10 images each, dark and light."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("images")
    for domain, tint in {"dusk": (90, 60, 60), "noon": (120, 120, 90), "snow": (110, 120, 140)}.items():
        for label, shift in {"dark": -50, "light": 80}.items():
            (root / domain / label).mkdir(parents=True)
            for i in range(10):
                color = tuple(channel + shift + i for channel in tint)
                image.new("RGB", (40 + i, 50), color).save(root / domain / label / f"{i}.png")
    return root
