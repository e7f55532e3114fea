from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 3 domains of 2 classes of 6 images each, of different sizes."""
    np, image = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    root, random = tmp_path_factory.mktemp("photographs") / "animals", np.random.RandomState(0)
    for domain in "abc":
        for shade, label in enumerate(("cat", "dog")):
            (root / domain / label).mkdir(parents=True)
            for i in range(6):
                pixels = random.randint(0, 128, (40 + i, 56, 3)) + 127 * shade
                image.fromarray(pixels.astype(np.uint8)).save(root / domain / label / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def timm_run(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of a network of timm on the photographs."""
    pytest.importorskip("timm")
    from swad.testbed.training.config import RunConfig
    from swad.testbed.training.loop import train

    config = RunConfig.from_options(
        dataset="folder",
        data_dir=photographs,
        target="a",
        network="test_resnet",
        weights="random",
        image_size=64,
        steps=6,
        evaluate_every=2,
        averages=("ema", "swa"),
        hyperparameters={"batch_size": 4, "lr": 1e-2},
        device="cpu",
        workers=0,
        output=tmp_path_factory.mktemp("timm") / "a-0",
    )
    return train(config).run_dir
