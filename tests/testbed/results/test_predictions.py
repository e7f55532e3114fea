from __future__ import annotations

import numpy as np
import pytest

from swad.testbed.results import predictions
from swad.testbed.results.predictions import PREDICTIONS, Part, read_predictions, write_predictions
from swad.testbed.results.records import RecordError

CLASSES = ("cat", "dog", "<b>")
PARTS = (
    Part("photo", "in", np.array([4, 0]), np.array([0, 2]), ("photo/cat/4.jpg", "photo/é/0.jpg"), "/data/pets"),
    Part("sketch", "out", np.array([7]), np.array([1])),
)
CHANCES = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.25, 0.5, 0.25]], np.float32)


def write(folder, parts=PARTS, classes=CLASSES, **outputs):
    write_predictions(folder, classes, parts, outputs or {"swad": (CHANCES.argmax(1), CHANCES)})
    return folder


def test_predictions_are_read_as_they_were_written(tmp_path):
    other = np.roll(CHANCES, 1, axis=1)
    frame = read_predictions(write(tmp_path, swad=(CHANCES.argmax(1), CHANCES), best=(other.argmax(1), other)))
    assert list(frame.columns[:8]) == [
        "weights", "domain", "split", "image", "path", "label", "prediction", "probability",
    ]  # fmt: skip
    assert frame.iloc[:3, :7].to_numpy().tolist() == [
        ["swad", "photo", "in", 4, "/data/pets/photo/cat/4.jpg", "cat", "cat"],
        ["swad", "photo", "in", 0, "/data/pets/photo/é/0.jpg", "<b>", "dog"],
        ["swad", "sketch", "out", 7, "", "dog", "dog"],
    ]
    assert frame.prediction.tolist()[3:] == ["dog", "<b>", "<b>"]
    np.testing.assert_array_equal(frame[["p(cat)", "p(dog)", "p(<b>)"]], np.concatenate([CHANCES, other]))
    assert frame.probability.tolist() == pytest.approx([0.7, 0.6, 0.5, 0.7, 0.6, 0.5])
    assert (frame.label == frame.prediction).tolist() == [True, False, True, False, True, False]


def test_the_probabilities_may_be_those_of_the_predictions_alone(tmp_path):
    frame = read_predictions(write(tmp_path, swad=(CHANCES.argmax(1), CHANCES.max(1))))
    assert frame.columns[-1] == "probability"
    assert frame.probability.tolist() == pytest.approx([0.7, 0.6, 0.5])


def test_the_same_predictions_give_the_same_file(tmp_path):
    files = [(write(tmp_path / name) / PREDICTIONS).read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]


def test_a_run_without_predictions_is_named(tmp_path):
    with pytest.raises(RecordError, match=f"{tmp_path} has no predictions.npz: .*--no-predictions"):
        read_predictions(tmp_path)


def test_a_damaged_file_is_refused(tmp_path):
    path = write(tmp_path) / PREDICTIONS
    whole = path.read_bytes()
    for damaged in (b"", b"no archive", whole[:200], whole[:150] + bytes([whole[150] ^ 1]) + whole[151:]):
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=r"cannot read .*predictions.npz .*: restore it or remove it"):
            read_predictions(tmp_path)


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    with (tmp_path / PREDICTIONS).open("wb") as file:
        np.savez(file, classes=np.array([Trap()], dtype=object))
    with pytest.raises(RecordError, match="allow_pickle"):
        read_predictions(tmp_path)


def test_codes_without_a_name_are_refused(tmp_path):
    path = write(tmp_path) / PREDICTIONS
    with np.load(path) as arrays:
        stored = dict(arrays)
    stored["label"] = stored["label"] + 5
    np.savez(path, **stored)
    with pytest.raises(RecordError, match="cannot read"):
        read_predictions(tmp_path)


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    n = 10_000
    zeros = np.zeros((n, 3), np.float32)
    write(tmp_path, [Part("photo", "in", np.zeros(n), np.zeros(n))], swad=(zeros.argmax(1), zeros))
    monkeypatch.setattr(predictions, "MAX_BYTES", 20_000)
    with pytest.raises(RecordError, match="it holds more than 20,000 bytes"):
        read_predictions(tmp_path)
