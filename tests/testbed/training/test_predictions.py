from __future__ import annotations

from pathlib import Path

import numpy as np

from helpers.runs import cached_config, short
from swad.testbed.data.benchmarks import load
from swad.testbed.data.splits import hold_out
from swad.testbed.results.predictions import PREDICTIONS, read_predictions
from swad.testbed.results.records import read_records
from swad.testbed.training.loop import train


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
    monkeypatch.setattr("swad.testbed.training.predictions.MAX_CLASSES", 9)
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
