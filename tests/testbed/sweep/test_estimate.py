from __future__ import annotations

import pytest
from PIL import Image

from swad.testbed.data import benchmarks
from swad.testbed.sweep import estimate as module
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.estimate import Speed, describe_costs, estimate
from swad.testbed.sweep.plan import expand
from swad.testbed.sweep.run import run_sweep
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.loop import RunInterrupted
from swad.testbed.workers.work import work

SPEED = Speed(per_trained_image=1e-3, per_evaluated_image=1e-4)


@pytest.fixture
def measured(monkeypatch):
    """Datasets whose steps were measured, with a known speed."""
    seen = []

    def measure(config, slots):
        seen.append((config.dataset, config.algorithm))
        return SPEED

    monkeypatch.setattr(module, "measure", measure)
    return seen


def test_the_time_of_a_run_by_the_formula(measured):
    plan = expand(SweepSpec(datasets=("PACS",), targets=("sketch",), trials=(0,), averages=("swad", "ema")), "sweep")
    (one,) = estimate(plan, ["PACS"], "cpu")
    validation = int(0.2 * 2048) + int(0.2 * 2344) + int(0.2 * 1670)
    trained = 5000 * 32 * 3 * 1e-3
    evaluated = (50 * validation + 4 * (validation + 3929)) * 1e-4
    assert one.seconds == pytest.approx(trained + evaluated)
    assert one.bytes == 4 * 94_302_404 + 50 * 12 * 100  # ResNet-50 with seven classes, in fp32


def test_other_batches_targets_and_waiting_runs_count(measured):
    def seconds(**changes):
        spec = SweepSpec(**{"datasets": ("PACS",), "targets": ("sketch",), "trials": (0,), **changes})
        return estimate(expand(spec, "sweep"), ["PACS"], "cpu")[0].seconds

    usual = seconds()
    half = seconds(options={"hyperparameters": {"batch_size": 16}})
    assert usual - half == pytest.approx(5000 * 16 * 3 * 1e-3)
    assert seconds(options={"validation_subsample": 10}) < usual
    assert seconds(options={"target_every_evaluation": True}) == pytest.approx(usual + 50 * 3929 * 1e-4)
    # A preparation of a fifth of the training.
    assert seconds(algorithms=("metareg",)) == pytest.approx(usual + 1000 * 32 * 3 * 1e-3)
    # 18 runs of the search, and two that wait for its choice.
    assert seconds(protocol="paper", trials=(0, 1, 2)) == pytest.approx(20 * usual)
    # Two sources instead of three.
    pairs = seconds(select="lodo")
    assert 3 * usual < pairs < 4 * usual


def test_the_time_on_a_dataset_that_is_not_at_hand_is_unknown(measured):
    spec = SweepSpec(algorithms=("erm", "coral"), datasets=("digits", "PACS"), trials=(0,))
    found = estimate(expand(spec, "sweep"), ["digits"], "cpu")
    assert measured == [("digits", "erm"), ("digits", "coral")]
    assert [one.seconds is None for one in found] == [False, False, True, True]
    assert describe_costs(found, 2).startswith("at least ")
    assert all(one.bytes for one in found)


@pytest.mark.slow
def test_measuring_writes_nothing_and_is_close_to_a_real_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = SweepSpec(targets=("paper",), trials=(0,), options={"steps": 60, "evaluate_every": 20})
    plan = expand(spec, "sweep")
    (one,) = estimate(plan, ["digits"], "cpu")
    assert list(tmp_path.iterdir()) == []
    assert benchmarks.get("digits").image_spec.low_res
    sweep = SweepDir("sweep")
    sweep.add(spec)
    assert run_sweep(sweep, work).complete
    taken = sweep.seconds(plan.runs[0])
    assert one.seconds / 6 < taken < 6 * one.seconds + 2  # other processes may share the cores


@pytest.mark.parametrize(("options", "threads"), [({}, 1), ({"network": "test_resnet"}, 7), ({"threads": 3}, 3)])
def test_a_step_is_measured_with_the_threads_of_a_run(monkeypatch, options, threads):
    """The small network uses one, other networks the run's share of the cores."""

    def train(config, callback):
        assert config.threads == threads
        raise RunInterrupted(config.output, 3)

    monkeypatch.setattr(module, "threads_per_process", lambda processes: 7)
    monkeypatch.setattr(module, "train", train)
    plan = expand(SweepSpec(targets=("paper",), trials=(0,), options=options), "sweep")
    with pytest.raises(KeyboardInterrupt):  # and no advice to resume the run
        estimate(plan, ["digits"], "cpu", processes=2)


@pytest.mark.slow
def test_measuring_leaves_no_image_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SWAD_CACHE", str(tmp_path / "cache"))
    for domain in ("east", "north", "south"):
        for number in range(8):
            (tmp_path / "mine" / domain / f"class{number % 2}").mkdir(parents=True, exist_ok=True)
            image = Image.new("RGB", (40, 30), (30 * number, 100, 20))
            image.save(tmp_path / "mine" / domain / f"class{number % 2}" / f"{number}.png")
    options = {"network": "test_resnet", "input_pipeline": "gpu", "steps": 4}
    spec = SweepSpec(datasets=("folder",), data=tmp_path / "mine", trials=(0,), options=options).with_domains()
    (one,) = estimate(expand(spec, tmp_path / "sweep"), ["mine"], "cpu")
    assert (one.dataset, one.runs) == ("mine", 3)
    assert one.seconds > 0
    assert one.bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
