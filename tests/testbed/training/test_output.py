"""What a run gives: its result, warnings of ranges, and the batch norms of its averages."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import swad
from helpers.runs import cached_config, short
from swad.testbed.algorithms.base import RunInfo
from swad.testbed.data.benchmarks import load
from swad.testbed.data.splits import hold_out
from swad.testbed.results.predictions import PREDICTIONS, read_predictions
from swad.testbed.results.records import read_records
from swad.testbed.training.loop import train
from swad.testbed.training.output import PASSES, estimate_statistics, range_warnings
from swad.testbed.training.run_dir import RunResult


def test_the_full_score_combines_the_in_and_out_splits(finished_run):
    scores = json.loads((finished_run / "done.json").read_text())["scores"]["swad"]["paper"]
    n_in, n_out = 36, 9
    correct = scores["in"]["accuracy"] * n_in + scores["out"]["accuracy"] * n_out
    assert correct / 45 == pytest.approx(scores["full"]["accuracy"])


def test_weights_that_a_run_has_not_are_named(finished_run):
    result = train(short(finished_run))
    for accuracy in (result.target_accuracy, result.source_accuracy):
        with pytest.raises(ValueError, match=r"has the weights best, last, swad, .*; got 'sma'$"):
            accuracy("sma")


def test_a_result_is_read_back_from_json(finished_run):
    result = train(short(finished_run))
    content = json.loads(json.dumps(result.to_json()))
    assert "config" not in content
    assert RunResult.from_json(content, result.config) == result
    assert result.source_accuracy("swad") == pytest.approx(
        sum(result.scores["swad"][name]["out"]["accuracy"] for name in ("board", "clutter", "outline")) / 3
    )


NEVER_FELL = "because the validation loss never fell below it: train longer or evaluate more often"
FELL_LATER = "but the validation loss fell later, to 0.2 at step 40: raise n_converge or evaluate less often"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.5, 0.6, 0.5, 0.7], f"swad starts at the first evaluation (step 10), {NEVER_FELL}"),
        ([0.5, 0.6, 0.6, 0.2], f"swad starts at the first evaluation (step 10), {FELL_LATER}"),
        ([0.5, 0.4, 0.6, 0.2], None),
        ([1.2, 1.1, 1.2, 0.9], "swad starts at step 20 with a validation loss of 1.1, not below chance (0.6931)"),
        ([0.5, 0.6, 0.2, 0.1], "swad: the average began at update 10, but 2 of the 2 losses since are far below those"),
        ([0.5, 0.4, 0.3, 0.2], "the validation loss never converged for swad, so it averages only the end of training"),
    ],
)
def test_ranges_that_start_too_early(losses, expected):
    model = nn.Linear(2, 2)
    average = swad.SWAD(model, n_converge=2)
    by_step = dict(zip((10, 20, 30, 40), losses, strict=True))
    for step in range(1, 41):
        average.update_parameters(model)
        if step in by_step:
            average.observe(by_step[step])
    training = SimpleNamespace(averages={"swad": average}, valley=lambda name: average.rule)
    texts = range_warnings(training, by_step, n_classes=2)
    assert [text.startswith(expected) for text in texts] == [True] * (expected is not None)


class Batches:
    """A loader of one image per part, with as many passes in a step as it has parts."""

    device = torch.device("cpu")

    def __init__(self, n_parts: int) -> None:
        self.n_parts = n_parts

    def inputs(self, start, stop):
        return ((step, {"images": torch.full((1, 3, 2, 2), float(step))}) for step in range(start, stop + 1))

    def parts(self, step, inputs):
        return (SimpleNamespace(images=inputs["images"]) for _ in range(self.n_parts))


def estimate(model: nn.Module, n_images: int, n_parts: int = 1, freeze_bn: bool = False) -> tuple[bool, int, list]:
    """Return whether statistics were estimated, in how many passes, and what was averaged over processes."""
    averaged, passes = [], []
    config = SimpleNamespace(freeze_bn=freeze_bn, precision="fp32")
    dist = SimpleNamespace(device=torch.device("cpu"), average=averaged.extend)
    run_info = RunInfo((n_images // 2, n_images - n_images // 2))
    algorithm = SimpleNamespace(run_info=run_info, n_images=4)
    algorithm.estimate_statistics = lambda model, images: bool(passes.extend(images)) or True
    estimated = estimate_statistics(model, config, algorithm, Batches(n_parts), dist)
    return estimated, len(passes), averaged


@pytest.mark.parametrize(("n_images", "n_parts", "passes"), [(10, 1, 3), (10, 2, 6), (4000, 1, PASSES), (4000, 8, 200)])
def test_an_epoch_is_enough_and_a_large_one_is_cut(n_images, n_parts, passes):
    assert estimate(nn.BatchNorm2d(3), n_images, n_parts)[:2] == (True, passes)


def test_every_process_has_seen_its_own_images_only():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    _, _, averaged = estimate(model, 10)
    assert [tensor.data_ptr() for tensor in averaged] == [
        model[1].running_mean.data_ptr(),
        model[1].running_var.data_ptr(),
    ]


def test_frozen_statistics_stay():
    assert estimate(nn.BatchNorm2d(3), 10, freeze_bn=True) == (False, 0, [])


def recorded_accuracies(run_dir):
    return {
        (record.average, record.domain, record.split): record.value
        for record in read_records(run_dir)
        if record.metric == "accuracy" and record.average is not None and record.split != "full"
    }


def test_the_predictions_are_those_that_the_accuracies_count(finished_run):
    predictions = read_predictions(finished_run)
    groups = predictions.groupby(["weights", "domain", "split"], observed=True)
    shares = groups[["label", "prediction"]].apply(lambda rows: (rows.label == rows.prediction).mean())
    assert shares.to_dict() == recorded_accuracies(finished_run)
    columns = [f"p({digit})" for digit in range(10)]
    np.testing.assert_allclose(predictions[columns].sum(axis=1), 1, rtol=1e-5)
    assert (predictions[columns].max(axis=1) == predictions.probability).all()


def test_every_evaluated_image_has_its_own_row(finished_run):
    sources, target = hold_out(load("digits"), "paper")
    predictions = read_predictions(finished_run)
    of_swad = predictions[predictions.weights == "swad"]
    for split, parts in {"in": target.train, "out": (*target.val, *sources.val)}.items():
        for part in parts:
            rows = of_swad[(of_swad.domain == part.name) & (of_swad.split == split)]
            assert rows.image.tolist() == part.keys.tolist()
            assert rows.label.cat.codes.tolist() == part.labels.tolist()
    assert set(predictions.weights) == {"best", "last", "swad", "swa", "ema"}
    assert set(predictions.path) == {""}


def test_predictions_name_the_files_of_images(image_folder, tmp_path):
    config = cached_config(image_folder, tmp_path / "run", cache=tmp_path / "cache", split="60/20/20")
    predictions = read_predictions(train(config.replace(target="snow")).run_dir)
    assert set(predictions.split) == {"in", "out", "test"}
    for row in predictions.itertuples():
        assert Path(row.path).is_file()
        assert Path(row.path).parent == image_folder.resolve() / row.domain / row.label


def test_with_many_classes_only_the_probability_of_the_predicted_one_is_kept(finished_run, tmp_path, monkeypatch):
    monkeypatch.setattr("swad.testbed.training.output.MAX_CLASSES", 9)
    kept, whole = read_predictions(train(short(tmp_path / "run")).run_dir), read_predictions(finished_run)
    assert kept.columns[-1] == "probability"
    assert kept.equals(whole[kept.columns])


def test_a_run_can_do_without_predictions(finished_run, tmp_path):
    result = train(short(tmp_path / "run", predictions=False))
    assert not (result.run_dir / PREDICTIONS).exists()
    assert recorded_accuracies(result.run_dir) == recorded_accuracies(finished_run)


def test_predictions_of_an_attempt_without_a_result_are_removed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / PREDICTIONS).write_bytes(b"of an attempt that failed")
    train(short(tmp_path / "run", predictions=False))
    assert not (tmp_path / "run" / PREDICTIONS).exists()
