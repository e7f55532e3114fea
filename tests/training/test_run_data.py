"""The data of a run is checked before it trains."""

from __future__ import annotations

import pytest

from helpers.runs import RecordingCallback, short
from swad.data import verify
from swad.data.domains import DataError
from swad.training import run_data
from swad.training.loop import train

SETTINGS = {"dataset": "folder", "target": "a", "network": "test_resnet", "weights": "random", "workers": 0}
SETTINGS |= {"averages": (), "steps": 1, "evaluate_every": 1, "hyperparameters": {"batch_size": 2}}


def test_a_damaged_image_of_the_target_is_found_before_training(tmp_path, noise_folder):
    bad = noise_folder / "a" / "dark" / "3.png"
    bad.write_bytes(bad.read_bytes()[:200])
    callback = RecordingCallback()
    with pytest.raises(DataError, match=r"cannot decode 1 of 60 images: .*a/dark/3.png; replace or remove") as caught:
        train(short(tmp_path / "run", data_dir=noise_folder, **SETTINGS), callback=callback)
    assert not callback.steps
    assert "\n" not in str(caught.value)


def test_images_are_decoded_once_until_they_change(tmp_path, noise_folder, monkeypatch):
    decoded = []
    monkeypatch.setattr(run_data, "find_bad_images", lambda paths, *rest: decoded.append(len(paths)) or ())
    for name in ("one", "two"):
        train(short(tmp_path / name, data_dir=noise_folder, cache=tmp_path / "cache", **SETTINGS))
    assert decoded == [60]
    (noise_folder / "a" / "dark" / "3.png").write_bytes((noise_folder / "b" / "dark" / "3.png").read_bytes())
    train(short(tmp_path / "three", data_dir=noise_folder, cache=tmp_path / "cache", **SETTINGS))
    assert decoded == [60, 60]
    assert not verify.find_bad_images(sorted(noise_folder.rglob("*.png")))
