"""The embedded digits: the same bytes everywhere, and no scan in two styles."""

import hashlib

import numpy as np
from sklearn.datasets import load_digits

from helpers.imports import modules_after
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmarks import digits


def test_golden_bytes():
    dataset = benchmarks.load("digits")
    sums = {d.name: hashlib.sha256(d.images.tobytes()).hexdigest()[:16] for d in dataset.domains}
    labels = {d.name: hashlib.sha256(d.labels.tobytes()).hexdigest()[:16] for d in dataset.domains}
    assert sums == GOLDEN_IMAGES
    assert labels == GOLDEN_LABELS


def test_every_scan_is_drawn_once(monkeypatch):
    # With every style replaced by one that shows the ink alone and none moved, all scans come back, each once.
    monkeypatch.setattr(digits, "shift", lambda ink, by: ink)
    monkeypatch.setattr(digits, "STYLES", dict.fromkeys(digits.STYLES, lambda ink, draw: ink[..., None]))
    domains = digits.render.__wrapped__()
    drawn = np.concatenate([d.images[..., 0] for d in domains])
    labels = np.concatenate([d.labels for d in domains])
    scans, truth = load_digits(return_X_y=True)
    whole = digits.enlarge(scans.reshape(-1, 8, 8).astype(np.int64))
    assert len(drawn) == len(whole) == 1797
    key = [(image.tobytes(), int(label)) for image, label in zip(drawn, labels, strict=True)]
    assert sorted(key) == sorted((w.astype(np.uint8).tobytes(), int(t)) for w, t in zip(whole, truth, strict=True))


def test_a_small_experiment_imports_neither_scikit_learn_nor_torchvision(tmp_path):
    options = {"dataset": "digits", "target": "paper", "output": str(tmp_path / "run"), "steps": 1, "evaluate_every": 1}
    loaded = modules_after(f"import swad; swad.train({options})")
    assert not {"sklearn", "pandas", "scipy", "torchvision", "matplotlib"} & loaded


def test_counts_and_classes():
    dataset = benchmarks.load("digits")
    assert {d.name: len(d) for d in dataset.domains} == benchmarks.get("digits").counts
    for domain in dataset.domains:
        assert np.bincount(domain.labels, minlength=10).min() > 25
        # A style without contrast would be hopeless.
        assert np.ptp(domain.images.reshape(len(domain), -1), axis=1).min() > 60


GOLDEN_IMAGES = {
    "board": "4f03a00d03793984",
    "clutter": "741ae8ec664afd1b",
    "outline": "ede156fa3c29e0c4",
    "paper": "e8f854ae726ba462",
}
GOLDEN_LABELS = {
    "board": "7b7cb4cb40ca68a1",
    "clutter": "7a5e08030dabb1ac",
    "outline": "ef8da3b558f234b6",
    "paper": "5f08ba0f5de4391f",
}
