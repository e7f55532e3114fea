"""Measurements of users: the one of the docs on a finished run, against its definition, and mistakes in a file."""

from __future__ import annotations

import sys

import pytest
import torch

from helpers.documents import example
from helpers.tiny_runs import copied
from swad.testbed import measurements as package
from swad.testbed.measure.saved_run import open_run
from swad.testbed.measurements import MeasurementError, get_measurement, list_measurements
from swad.testbed.results.measured import measured
from swad.testbed.results.runs import load_run

EXAMPLE = example("reference/writing-a-method.md", "MEASUREMENT = Entropy")


@pytest.fixture
def own(tmp_path, monkeypatch):
    folder = tmp_path / "my_measurements"
    folder.mkdir()
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])  # as SWAD_MEASUREMENTS does at the start
    yield folder
    sys.modules.pop("swad.testbed.measurements.entropy", None)


@pytest.mark.slow
def test_the_example_of_the_docs_is_measured_stored_and_shown(own, here, tiny_run, tmp_path):
    (own / "entropy.py").write_text(EXAMPLE)
    assert "entropy" in list_measurements()
    what = get_measurement("entropy")
    folder = copied(tiny_run, tmp_path / "run")
    options = ("--weights", "best,swad", "--images", "12", "--threshold", "0.7", "--device", "cpu")
    shown = here("measure", "entropy", folder, *options).stdout
    assert "Undecided" in shown
    assert "nothing to do" in here("measure", "entropy", folder, *options).stdout
    assert (folder / "figures" / "entropy.csv").exists()

    run = open_run(folder)
    images = run.images(12, torch.device("cpu"), None, "validation")
    values = measured([load_run(folder)], what)
    for name in ("best", "swad"):
        p = {domain: run.model(name)(x).softmax(1).double() for domain, (x, _) in images.by_domain.items()}
        for side, domains in (("seen", images.seen), ("unseen", images.unseen)):
            twin = [torch.distributions.Categorical(p[domain]).entropy().mean().item() for domain in domains]
            of_weights = values[(values["side"] == side) & (values["weights"] == name)]
            found = of_weights[of_weights["quantity"] == "Entropy"]["value"].item()
            assert found == pytest.approx(sum(twin) / len(twin), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("MEASUREMENT = Entropy", "MEASUREMENT = 3"), "MEASUREMENT must be a subclass of Measurement, got 3"),
        (("@dataclass(frozen=True)\n", ""), "must be a dataclass: put @dataclass"),
        (('"entropy", "Entropy"', '"uncertainty", "Entropy"'), "it names command and files"),
        (("threshold: float = 0.5", 'threshold: float = "x"'), "threshold must be a"),
        (("    threshold: float = 0.5", "    threshold: float"), "threshold"),
        (("from typing", "from typin"), "typin"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(own, change, message):
    (own / "entropy.py").write_text(EXAMPLE.replace(*change))
    with pytest.raises((MeasurementError, ValueError), match=message) as refused:
        get_measurement("entropy")
    assert "\n" not in str(refused.value)
