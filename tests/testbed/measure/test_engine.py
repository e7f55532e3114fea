"""Every measurement is planned, stored, resumed and read back by the same engine."""

from __future__ import annotations

import dataclasses
import json
import shutil
import weakref
from dataclasses import replace

import pytest
import torch

from swad.testbed.measure import engine
from swad.testbed.measure.base import MeasuredRun, Measurement
from swad.testbed.measure.saved_run import open_run
from swad.testbed.measurements import get_measurement, list_measurements
from swad.testbed.measurements.calibration import Calibration
from swad.testbed.measurements.corruption import Corruption
from swad.testbed.results.measured import measured
from swad.testbed.results.measurement_rows import read_rows
from swad.testbed.results.runs import load_run
from swad.testbed.training.run_dir import RunError

QUICK = Corruption(images=30, corruptions=("fog", "gaussian_noise"), severities=(1, 5), seed=3)


@pytest.fixture
def run(two_trials, tmp_path):
    return open_run(shutil.copytree(two_trials / "paper-0", tmp_path / "paper-0"))


def measure(run, names, what=QUICK, progress=None):
    engine.measure(engine.plan([(run, names)], what), progress=progress)
    return [row for row in read_rows(run.path, what.file) if row["kind"] == what.kind]


def interrupt_after(n_evaluations):
    def progress(_, done, __):
        if done == engine.PARTS * n_evaluations:
            raise KeyboardInterrupt

    return progress


def test_a_measurement_resumes_and_extends(run):
    measure(run, ["swa"], replace(QUICK, corruptions=("fog",), severities=(1,)))
    file = run.path / "robustness.jsonl"
    file.write_bytes(file.read_bytes()[:-20])  # killed while the last row was written
    calls = []
    rows = measure(run, ["swa"], progress=lambda *call: calls.append(call))
    again = measure(run, ["swa"], progress=lambda *call: calls.append(call))
    assert rows == again
    assert calls[-1] == ("corruption", 3 * engine.PARTS, 3 * engine.PARTS)  # clean and fog 1 were there
    assert len(calls) == 3
    cases = [(row["corruption"], row["severity"], row["domain"]) for row in rows]
    assert len(set(cases)) == len(cases) == 5 * 4


def test_the_cost_is_stated_before_and_is_exact(run):
    jobs = engine.plan([(run, ["best", "swa"])], QUICK)
    assert engine.cost(jobs) == (
        "corruption: 1 run, 10 evaluations, 0 stored, 10 to do with 120 images each: about 1,200 forward passes"
    )
    with pytest.raises(KeyboardInterrupt):
        measure(run, ["best", "swa"], progress=interrupt_after(4))
    assert engine.cost(jobs).startswith("corruption: 1 run, 10 evaluations, 4 stored, 6 to do")
    measure(run, ["best", "swa"])
    assert engine.cost(jobs) == "corruption: 1 run, 10 evaluations, 10 stored, nothing to do"


def test_new_weights_are_measured_again_and_not_mixed_with_the_old(run, two_trials):
    def values():
        return list(measured([load_run(run.path)], Corruption)["value"])

    measure(run, ["swa"])
    old = values()
    shutil.copy(two_trials / "paper-1/weights/swa.safetensors", run.path / "weights/swa.safetensors")
    assert engine.plan([(run, ["swa"])], QUICK)[0].rows() == []
    with pytest.raises(KeyboardInterrupt):
        measure(run, ["swa"], progress=interrupt_after(2))
    assert values() == old
    measure(run, ["swa"])
    assert values() != old


def test_many_weights_are_measured_in_groups_with_the_same_rows(run, tmp_path, monkeypatch):
    names = ["best", "last", "swa"]
    whole = measure(open_run(shutil.copytree(run.path, tmp_path / "whole")), names)
    monkeypatch.setattr(Measurement, "at_once", 2)
    parts = measure(run, names)
    assert sorted(map(str, parts)) == sorted(map(str, whole))


def test_images_are_read_batch_by_batch(run, monkeypatch):
    what = Calibration(images=None)
    monkeypatch.setattr(type(run), "batch_size", lambda self, device: 16)
    alive, most = set(), 0
    domains = MeasuredRun(run, what, torch.device("cpu")).domains
    for domain in domains:
        for number, (images, _) in enumerate(domain):
            key = (domain.name, number)
            alive.add(key)
            weakref.finalize(images, alive.discard, key)
            most = max(most, len(alive))
    assert sum(map(len, domains)) > 16 * 4
    assert most <= 2


def test_one_run_without_the_weights_is_named(run):
    with pytest.raises(RunError, match="has no weights 'ema'"):
        engine.plan([(run, ["ema"])], QUICK)
    with pytest.raises(ValueError, match="calibration is measured of single weights: leave out 'window'"):
        monkey = replace(run, ranges={"swad": {"start_step": 1, "end_step": 20}})
        engine.plan([(monkey, ["window"])], Calibration())


@pytest.mark.parametrize("name", list_measurements())
def test_every_measurement_says_what_it_is(name):
    what = get_measurement(name)
    assert issubclass(what, Measurement)
    fields = [field.name for field in dataclasses.fields(what)]
    from swad.testbed.measure.base import options_of

    assert {name for name, option in options_of(what).items() if option.help} == set(fields)
    json.dumps(what().settings())


def test_options_are_checked_together():
    with pytest.raises(ValueError, match=r"no corruption 'fogg'.*severities must be from 1 to 5, got 0, 7"):
        Corruption(corruptions=("fogg",), severities=(0, 7))
    with pytest.raises(ValueError, match="images must be a whole number of at least 1, got 0"):
        Corruption(images=0)
