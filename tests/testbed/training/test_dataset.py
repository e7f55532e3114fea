"""The data of a run is checked before it trains."""

from __future__ import annotations

import shutil

import pytest
from PIL import Image

from helpers.runs import RecordingCallback, cached_config, require_same, short
from swad.testbed.data import cache, image_folder
from swad.testbed.data.device_store import keep_images
from swad.testbed.measure.saved_run import open_run
from swad.testbed.models.networks import NetworkError
from swad.testbed.training import dataset as run_dataset
from swad.testbed.training.export import load_predictor
from swad.testbed.training.loop import train
from swad.testbed.training.resolve import resolve
from swad.util.images import DataError

SETTINGS = {"dataset": "folder", "target": "a", "network": "test_resnet", "weights": "random", "workers": 0}
SETTINGS |= {"averages": (), "steps": 1, "evaluate_every": 1, "hyperparameters": {"batch_size": 2}}


def test_a_damaged_image_of_the_target_is_found_before_training(tmp_path, noise_folder):
    bad = noise_folder / "a" / "dark" / "3.png"
    bad.write_bytes(bad.read_bytes()[:200])
    callback = RecordingCallback()
    with pytest.raises(DataError, match=r"cannot decode image .*a/dark/3.png: .*; replace or remove") as caught:
        train(short(tmp_path / "run", data_dir=noise_folder, **SETTINGS), callback=callback)
    assert not callback.steps
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_images_are_decoded_once_until_they_change(tmp_path, noise_folder, monkeypatch):
    decoded = []
    monkeypatch.setattr(
        run_dataset, "find_bad_images", lambda domains, *rest: decoded.append(sum(map(len, domains))) or ()
    )
    for name in ("one", "two"):
        train(short(tmp_path / name, data_dir=noise_folder, cache=tmp_path / "cache", **SETTINGS))
    assert decoded == [60]
    (noise_folder / "a" / "dark" / "3.png").write_bytes((noise_folder / "b" / "dark" / "3.png").read_bytes())
    train(short(tmp_path / "three", data_dir=noise_folder, cache=tmp_path / "cache", **SETTINGS))
    assert decoded == [60, 60]


def test_a_network_sees_the_images_it_was_made_for(tmp_path, noise_folder):
    """The card and the loaded transform have them too; test_vit takes 160 pixels only."""
    result = train(short(tmp_path / "run", data_dir=noise_folder, **SETTINGS | {"network": "test_vit"}))
    model, transform, _ = load_predictor(tmp_path / "run" / result.weights["last"])
    image = transform(Image.new("RGB", (50, 40), (255, 255, 255)))
    assert image.shape == (3, 160, 160)
    assert image.unique().tolist() == [1.0]  # (1 - 0.5) / 0.5
    assert model(image[None]).shape == (1, 2)
    smaller = short(tmp_path / "smaller", data_dir=noise_folder, image_size=96, **SETTINGS | {"network": "test_vit"})
    saved = tmp_path / "smaller" / train(smaller).weights["last"]
    assert load_predictor(saved).transform(Image.new("RGB", (50, 40))).shape == (3, 96, 96)
    assert "num_classes=2, img_size=96)" in saved.with_suffix(".md").read_text()
    assert open_run(tmp_path / "smaller").images(2).by_domain["a"][0].shape == (2, 3, 96, 96)


def test_images_that_do_not_divide_into_patches_are_refused(tmp_path, noise_folder):
    """timm would leave out the last rows and columns without a word."""
    settings = {**SETTINGS, "network": "vit_tiny_patch16_224", "image_size": 40}
    with pytest.raises(NetworkError, match=r"patches of 16 × 16 pixels, but 40 .*: use an image_size of 32 or 48"):
        train(short(tmp_path / "run", data_dir=noise_folder, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_next_run_of_a_process_equals_that_of_a_new_one(tmp_path, noise_folder, device):
    """The image cache, and on a GPU the images, stay from a first run with other sources."""
    config = cached_config(noise_folder, tmp_path / "new", device=device, steps=4, deterministic=True)
    config = config.replace(target="b")
    cache._load.cache_clear()
    keep_images()
    try:
        train(config.replace(target="a", output=tmp_path / "first"))
        train(config.replace(output=tmp_path / "kept"))
        assert (cache._load.cache_info().misses, cache._load.cache_info().hits) == (1, 1)
    finally:
        keep_images(False)
        cache._load.cache_clear()
    train(config)
    require_same(tmp_path / "new", tmp_path / "kept")


def test_classes_that_no_source_shows_are_named(tmp_path, noise_folder):
    (noise_folder / "a" / "dark").rename(noise_folder / "a" / "new")
    callback = RecordingCallback()
    train(short(tmp_path / "run", data_dir=noise_folder, **SETTINGS), callback=callback)
    assert "warning: no training image shows these classes, so they cannot be recognized: new" in callback.messages


def test_an_epoch_has_the_images_of_now_which_are_listed_once(noise_folder, tmp_path, monkeypatch):
    listed = []
    monkeypatch.setattr(image_folder, "scan", lambda *args, scan=image_folder.scan: listed.append(args) or scan(*args))
    options = {"dataset": "folder", "data_dir": noise_folder, "target": "a", "epochs": 1, "workers": 0, "averages": ()}
    options |= {"network": "small", "image_size": 28, "hyperparameters": {"batch_size": 8}, "evaluate_every": 1}
    assert train({**options, "output": tmp_path / "before"}).steps == 2  # 32 images
    for path in list(noise_folder.rglob("*.png")):
        shutil.copy(path, path.with_name(f"copy-{path.name}"))
    after = train({**options, "output": tmp_path / "after"})
    assert after.steps == 4
    assert len(listed) == 2
    resolve(after.config.replace(trial=1, steps=None))  # counts the images, as a sweep does for its plan
    assert len(listed) == 3
    (noise_folder / "a" / "dark" / "0.png").unlink()
    assert sum(map(len, run_dataset.load_dataset(after.config).domains)) == 119
