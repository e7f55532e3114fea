"""Fit-on-val of Table 5 against all windows averaged by NumPy from the weights after every step."""

import json
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import short
from swad.testbed.measure import kept_segments
from swad.testbed.measure.saved_run import open_run
from swad.testbed.paper.fit_on_val import FILE, fit_run
from swad.testbed.training.loop import train
from swad.testbed.training.run_dir import RunError

pytest.importorskip("sklearn")

STEPS = 24


def test_the_chosen_window_is_the_best_of_all(tmp_path, monkeypatch):
    options = {"averages": ("swad",), "split": "60/20/20", "hyperparameters": {"lr": 0.005}}
    path = tmp_path / "paper-0"
    train(short(path, keep_segments=True, snapshots=tuple(range(1, STEPS + 1)), **options))
    monkeypatch.setattr(kept_segments, "MAX_SEGMENTS", 3)  # of six segments of four steps
    fitted = fit_run(path)
    run = open_run(path)
    model, (sources, target) = run.model("last"), run.held_out
    weights = [load_file(path / "weights" / f"step-{step:06d}.safetensors") for step in range(1, STEPS + 1)]

    def accuracy(parts, first, last):
        inside = weights[first - 1 : last]
        average = {name: np.mean([w[name].double().numpy() for w in inside], axis=0) for name in weights[0]}
        model.load_state_dict({name: torch.from_numpy(value).float() for name, value in average.items()})
        batches = [list(run.loader(part, None, torch.device("cpu"))) for part in parts]
        with torch.no_grad():
            right = [[(model(x).argmax(1) == y).double() for x, y in batch] for batch in batches]
        return np.mean([torch.cat(each).mean() for each in right])

    on_validation = {
        (8 * begin + 1, 8 * end + 8): accuracy(sources.val, 8 * begin + 1, 8 * end + 8)
        for begin, end in combinations_with_replacement(range(3), 2)
    }
    assert fitted.validation == pytest.approx(max(on_validation.values()), abs=0.01)  # rounding may flip an image
    window = (fitted.first, fitted.last)
    assert on_validation[window] == pytest.approx(fitted.validation, abs=0.01)
    assert fitted.out_of_domain == pytest.approx(accuracy(target.train, *window), abs=0.01)
    assert fitted.in_domain == pytest.approx(accuracy(sources.test, *window), abs=0.01)
    assert len({round(value, 3) for value in on_validation.values()}) > 3, "the windows differ"
    (path / "segments").rename(tmp_path / "gone")
    assert fit_run(path) == fitted, "a stored result needs no segments"
    stored = json.loads((path / FILE).read_text())
    for changed in ({"validation": 0.5}, {"first": "1"}, {"checksum": ""}):
        (path / FILE).write_text(json.dumps({**stored, **changed}))
        with pytest.raises(RunError, match=r"fit_on_val.json is damaged: restore the file, or remove it"):
            fit_run(path)
    del stored["checksum"]
    (path / FILE).write_text(json.dumps(stored))
    assert fit_run(path) == fitted, "earlier versions wrote no checksum"
    (path / FILE).unlink()
    with pytest.raises(RunError, match="kept no segments"):
        fit_run(path)
