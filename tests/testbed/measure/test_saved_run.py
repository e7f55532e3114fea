from __future__ import annotations

import numpy as np
import pytest
from torch.nn import functional

from helpers.runs import short
from helpers.special_files import at_most, replace_by
from swad.testbed.data.domains import ArrayDomain
from swad.testbed.data.splits import DomainSplit
from swad.testbed.measure.saved_run import SavedRun, open_run, stratified_subset
from swad.testbed.models.weight_files import NetworkError
from swad.testbed.results.records import read_records
from swad.testbed.training.loop import train


@pytest.mark.parametrize(
    ("n", "classes"),
    [
        (5, [3, 2, 0]),  # shares 3, 1.5 and 0.5: the rest goes to the first class that lost most
        (6, [4, 2, 0]),  # shares 3.6, 1.8 and 0.6: the second class lost most, then the first of equals
        (8, [5, 2, 1]),  # shares 4.8, 2.4 and 0.8
        (20, [6, 3, 1]),
    ],
)
def test_what_rounding_leaves_goes_to_the_classes_that_lost_most(n: int, classes: list[int]) -> None:
    labels = np.repeat(np.arange(3), (6, 3, 1))
    domain = ArrayDomain("photo", labels, np.zeros((10, 1, 1, 3), np.uint8))
    chosen = stratified_subset(DomainSplit(domain, "full", np.arange(10)), n)
    assert np.bincount(chosen.labels, minlength=3).tolist() == classes


def test_images_are_those_that_the_run_evaluated_from_its_cache(tmp_path, noise_folder):
    options = {"dataset": "folder", "data_dir": noise_folder, "target": "a", "network": "small", "image_size": 28}
    options |= {"input_pipeline": "gpu", "cache_size": 16, "cache": tmp_path / "cache", "steps": 1}
    path = train(short(tmp_path / "run", **options, evaluate_every=1, hyperparameters={"batch_size": 8})).run_dir
    losses = {(r.average, r.domain, r.split): r.value for r in read_records(path) if r.metric == "loss"}
    run = open_run(path)
    images, labels = run.images(None, split="validation").by_domain["b"]
    loss = functional.cross_entropy(run.model("last")(images), labels).item()
    assert loss == pytest.approx(losses["last", "b", "out"], rel=1e-4)


def test_a_weights_file_of_zeros_is_refused_before_all_of_it_is_read(tmp_path) -> None:
    replace_by("sparse", tmp_path / "swad.safetensors")
    run = SavedRun(tmp_path, short(tmp_path), {"swad": "swad.safetensors"}, None, {})
    with at_most(3), pytest.raises(NetworkError, match=r"cannot read .*swad\.safetensors as safetensors"):
        run.fingerprint("swad")
