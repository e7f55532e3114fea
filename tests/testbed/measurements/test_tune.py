"""Other settings on finished runs against the weights that the training saved, and against every weight kept."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from helpers.runs import short
from helpers.twins import averaged
from swad.testbed.measure import engine, kept_segments
from swad.testbed.measure.engine import choose_weights
from swad.testbed.measure.saved_run import open_run, open_runs
from swad.testbed.measurements import tune
from swad.testbed.measurements.tune import Tune
from swad.testbed.results.measured import measured
from swad.testbed.results.measured_report import report
from swad.testbed.results.runs import load_run
from swad.testbed.results.tuning import ValleySetting, choose, score_settings
from swad.testbed.training import evaluation
from swad.testbed.training.loop import train
from swad.testbed.training.resolve import resolve
from swad.testbed.training.run_dir import RunError

pytest.importorskip("sklearn")

STEPS, EVERY = 24, 4
OWN = {
    "swad": ValleySetting(2, 1, 0.0),
    "late": ValleySetting(3, 6, 0.3),
    "text": ValleySetting(1, 2, 0.0, "text"),
    "published": ValleySetting(2, 2, 0.0, "reference"),
}
GRID = Tune(n_converge=(1, 3), n_tolerance=(1, 6), tolerance_ratio=(0.0, 0.3), semantics=("paper", "text", "reference"))
ONE = Tune(n_converge=(2,), n_tolerance=(1,), tolerance_ratio=(0.0,))
CPU = torch.device("cpu")


def spec(label: str, setting: ValleySetting) -> str:
    options = ",".join(f"{name}={value}" for name, value in dataclasses.asdict(setting).items())
    return f"swad:as={label},{options}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two trials that kept their segments, and the weights after every step."""
    root = tmp_path_factory.mktemp("runs")
    averages = (*(spec(label, setting) for label, setting in OWN.items()), "swa")
    for trial in (0, 1):
        options = {"keep_segments": True, "trial": trial, "snapshots": tuple(range(1, STEPS + 1))}
        train(short(root / f"paper-{trial}", averages=averages, **options))
    return root


@pytest.fixture
def fresh(runs, tmp_path) -> Path:
    """The runs with nothing tuned."""
    return Path(shutil.copytree(runs, tmp_path / "runs", ignore=shutil.ignore_patterns("tune.jsonl")))


def rows_of(run: Path, **values) -> list[dict]:
    rows = [json.loads(line) for line in (run / "tune.jsonl").read_text().splitlines()]
    return [row for row in rows if values.items() <= row.items()]


def measure(path, what, device="cpu"):
    chosen, _ = choose_weights(open_runs([path])[0], (), what)
    paths = engine.measure(engine.plan(chosen, what, device), device)
    return measured([load_run(each) for each in paths], Tune)


def recorded(run: Path, label: str) -> dict[str, float]:
    """Return the accuracies that a training recorded of an average, by the quantity of a search."""
    frame = load_run(run).frame
    of_label = frame[(frame["weights"] == label) & (frame["metric"] == "accuracy")]
    is_target = of_label["domain"] == "paper"
    found = {"target out": of_label[is_target & (of_label["split"] == "out")]["value"].mean()}
    found["Target, %"] = of_label[is_target & (of_label["split"] == "in")]["value"].mean()
    found["Validation, %"] = of_label[~is_target & (of_label["split"] == "out")]["value"].mean()
    return {name: 100 * value for name, value in found.items()}


def test_the_settings_of_the_run_give_the_saved_weights_to_the_bit(runs, tmp_path):
    run = open_run(runs / "paper-0")
    assert tune.own_settings(run) == OWN
    losses, names = tune.validation_losses(run), [setting.name for setting in OWN.values()]
    assert len(tune._by_spans(losses, names)) == len(OWN), "the averages must differ, or the test shows little"
    for label, setting in OWN.items():
        path = tune.save_average(run, setting, tmp_path / label, CPU)
        tuned, saved = load_file(path), load_file(runs / "paper-0" / "weights" / f"{label}.safetensors")
        assert tuned.keys() == saved.keys()
        assert all(torch.equal(tuned[name], saved[name]) for name in saved), label


def test_accuracies_and_steps_are_those_that_the_run_recorded(fresh):
    values = measure(fresh, dataclasses.replace(ONE, select="oracle"))
    for trial in (0, 1):
        done = json.loads((fresh / f"paper-{trial}" / "done.json").read_text())
        for label, setting in OWN.items():
            own = values[(values["trial"] == trial) & (values["weights"] == setting.name)]
            found = dict(zip(own["quantity"], own["value"], strict=True))
            for name, accuracy in recorded(fresh / f"paper-{trial}", label).items():
                assert found[name] == pytest.approx(accuracy, abs=1e-9)
            steps = done["ranges"][label]
            names = {"First step": "start_step", "Last step": "end_step", "Weights": "n_averaged"}
            assert {name: found[name] for name in names} == {name: steps[key] for name, key in names.items()}


def test_a_run_with_an_average_whose_file_is_gone_can_be_tuned(runs):
    run = open_run(runs / "paper-0")
    averages = ("gone:skip=0.5", *run.config.averages)
    changed = dataclasses.replace(run, config=dataclasses.replace(run.config, averages=averages))
    assert tune.own_settings(changed) == tune.own_settings(run)


@pytest.mark.parametrize(("pipeline", "recipe"), [("torchvision", None), ("gpu", None), ("gpu", "imagenet")])
def test_a_cache_is_opened_for_the_runs_that_read_from_one(pipeline, recipe, monkeypatch):
    """A cache of ImageNet would take hours to build, and a run of its recipe reads none."""
    opened = []
    monkeypatch.setattr(kept_segments, "load_dataset", lambda config, data: "dataset")
    monkeypatch.setattr(kept_segments, "open_cache", lambda dataset, *_, **options: opened.append(dataset))
    config = dataclasses.replace(resolve(short(Path("run"))), input_pipeline=pipeline, recipe=recipe)
    kept_segments._cache(SimpleNamespace(data=None), config)
    assert opened == ["dataset"] * ((pipeline, recipe) == ("gpu", None))


@pytest.mark.slow
def test_trained_batch_norms_get_the_statistics_that_the_run_estimated(tmp_path):
    pytest.importorskip("timm")
    options = {"network": "test_resnet", "weights": "random", "keep_segments": True, "steps": 4, "evaluate_every": 2}
    options["hyperparameters"] = {"batch_size": 96, "lr": 1e-3}
    setting = ValleySetting(1, 6, 0.3)
    train(short(tmp_path / "runs" / "paper-0", averages=(spec("swad", setting),), **options))
    path = tmp_path / "runs" / "paper-0"
    values = measure(path, Tune(n_converge=(1,), n_tolerance=(6,), tolerance_ratio=(0.3,)))
    found = dict(zip(values["quantity"], values["value"], strict=True))
    assert {name: found[name] for name in recorded(path, "swad")} == pytest.approx(recorded(path, "swad"))
    tuned = load_file(tune.save_average(open_run(path), setting, tmp_path / "tuned", CPU))
    saved, last = (load_file(tmp_path / "runs/paper-0/weights" / f"{name}.safetensors") for name in ("swad", "last"))
    assert all(torch.equal(tuned[name], saved[name]) for name in saved)
    assert any("running" in name and not torch.equal(last[name], saved[name]) for name in saved)


@pytest.fixture(scope="module")
def every_weight(runs) -> list[dict[str, torch.Tensor]]:
    return [load_file(runs / "paper-0" / "weights" / f"step-{step:06d}.safetensors") for step in range(1, STEPS + 1)]


@settings(max_examples=40)
@given(
    st.integers(1, 7),
    st.integers(1, 7),
    st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0]),
    st.sampled_from(["paper", "text", "reference"]),
)
def test_any_setting_averages_what_its_definition_says(runs, every_weight, n_converge, n_tolerance, ratio, semantics):
    setting = ValleySetting(n_converge, n_tolerance, ratio, semantics)
    run = open_run(runs / "paper-0")
    losses = tune.validation_losses(run)
    weights = averaged(list(losses.values()), list(losses), STEPS, semantics, n_converge, n_tolerance, 1 + ratio)
    steps = tune._steps(losses, setting.name, set())
    assert (steps["first"], steps["last"]) == (min(weights), max(weights))
    ((_, average),) = tune._averages(run, run.model("last"), [setting.name])
    with tune._quiet():
        state = average.averaged_state()
    for name, tensor in state.items():
        want = sum(float(w) * every_weight[step - 1][name].double() for step, w in weights.items())
        torch.testing.assert_close(tensor.double(), want, rtol=1e-5, atol=1e-7)


def test_equal_averages_are_evaluated_once_and_an_interrupted_search_resumes(fresh, monkeypatch):
    evaluate, count, limit = evaluation.evaluate_splits, 0, 3

    def limited(*arguments):
        nonlocal count
        count += 1
        if count > limit:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(evaluation, "evaluate_splits", limited)
    first = fresh / "paper-0"
    with pytest.raises(KeyboardInterrupt):
        measure(first, GRID)
    before = rows_of(first)
    assert before, "what was measured is stored"
    with (first / "tune.jsonl").open("a") as file:
        file.write('{"v": 1, "key": "half a li')
    limit = 10**6
    values = measure(first, GRID)
    assert rows_of(first)[: len(before)] == before
    run, names = open_run(first), [setting.name for setting in GRID.grid]
    averages = tune._by_spans(tune.validation_losses(run), [*names, *(own.name for own in OWN.values())])
    assert len(averages) < len(GRID.grid) / 2
    n_target = len({row["weights"] for row in rows_of(first, side="unseen")})
    # The interrupted evaluation, every average on validation; on the target the chosen setting and the trained ones.
    assert len(averages) < count - 1 <= len(averages) + 2 * n_target
    done = count
    assert measure(first, GRID).equals(values)
    assert count == done, "everything is stored"
    monkeypatch.setattr("swad.testbed.measure.saved_run.fingerprint", lambda path: "records of another training")
    measure(first, ONE)
    assert count > done


def test_the_target_is_evaluated_for_the_chosen_setting_alone(fresh):
    values = measure(fresh, GRID)
    (setting,) = choose(values).values()
    scores = score_settings(values)
    assert scores[setting] == max(scores.values())
    trained = {own.name for own in OWN.values()}
    for path in (fresh / "paper-0", fresh / "paper-1"):
        assert {row["weights"] for row in rows_of(path, side="unseen")} == {setting.name, *trained}
    shown = report(values, Tune)
    of_target = shown.means[shown.means["side"] == "unseen"]["method"].unique()
    assert list(of_target) == [f"as trained: {OWN['swad']}", f"chosen: {setting}"]
    oracle = measure(fresh, dataclasses.replace(GRID, select="oracle"))
    (chosen,) = choose(oracle).values()
    scores = score_settings(oracle, "target out")
    assert len(scores) >= len(GRID.grid)
    assert scores[chosen] == max(scores.values())


def test_among_equal_settings_the_one_most_like_the_training_is_chosen(runs):
    values = measure(runs, ONE).iloc[:0]
    never_converge = [ValleySetting(7, 6, 0.9), ValleySetting(7, OWN["swad"].n_tolerance, OWN["swad"].tolerance_ratio)]
    rows = [line(values, setting.name, "Validation, %", 50) for setting in never_converge]
    rows.append(line(values, OWN["swad"].name, "trained", 1))
    values = made_up(rows, values)
    assert list(choose(values).values()) == never_converge[1:]


def line(values, weights, quantity, value, dataset="digits", select="iid", **settings):
    stated = json.dumps({"select": select, **settings})
    side = "seen" if quantity == "Validation, %" else "unseen"
    return (dataset, "erm", weights, "paper", 0, side, quantity, value, weights, stated)


def made_up(rows, values):
    return type(values)(rows, columns=values.columns)


def test_runs_without_segments_show_the_steps_of_every_setting(fresh):
    shutil.rmtree(fresh / "paper-1" / "segments")
    with pytest.warns(UserWarning, match=r"1 of 2 runs kept no segments, .* --keep-segments"):
        both = measure(fresh, GRID)
    assert set(both[both["quantity"] == "Validation, %"]["trial"]) == {0}
    shutil.rmtree(fresh / "paper-0" / "segments")
    with pytest.warns(UserWarning, match="2 of 2 runs kept no segments"):
        bare = measure(fresh, GRID)
    assert not choose(bare)
    steps = [frame[frame["quantity"].isin(["First step", "Last step", "Weights"])] for frame in (both, bare)]
    of_seen = [frame[frame["side"] == "seen"]["value"].tolist() for frame in steps]
    assert of_seen[0] == of_seen[1]
    shown = report(bare, Tune)
    assert shown.tables[0].columns == ("First step", "Last step", "Weights", "Loss at first step")
    assert shown.figure("digits") is None


def test_a_run_that_stopped_early_says_how_far_its_losses_reach(tmp_path):
    rising = {"batch_size": 2, "lr": 0.08}  # the loss rises again soon
    options = {"report_live": False, "averages": (spec("swad", OWN["swad"]),), "hyperparameters": rising}
    steps = train(short(tmp_path / "stopped", **options)).steps
    assert steps < STEPS
    assert train(short(tmp_path / "kept", keep_segments=True, **options)).steps == STEPS, "tuning needs all losses"
    with pytest.warns(UserWarning, match=rf"stopped stopped early, so no setting averages beyond step {steps}"):
        values = measure(tmp_path / "stopped", Tune(n_converge=(3,), n_tolerance=(6,), tolerance_ratio=(0.3,)))
    of_setting = values[(values["quantity"] == "Last step") & (values["weights"] == OWN["late"].name)]
    assert of_setting["value"].tolist() == [steps]


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_tuned_there_to_the_bit(tmp_path):
    averages = tuple(spec(label, setting) for label, setting in OWN.items())
    train(short(tmp_path / "run", keep_segments=True, averages=averages, device="cuda", engine="graph"))
    run = open_run(tmp_path / "run")
    for label, setting in OWN.items():
        path = tune.save_average(run, setting, tmp_path / label, torch.device("cuda"))
        tuned, saved = load_file(path), load_file(tmp_path / "run" / "weights" / f"{label}.safetensors")
        assert all(torch.equal(tuned[name], saved[name]) for name in saved), label
    values = measure(tmp_path / "run", ONE, "cuda")
    for label, setting in OWN.items():
        accuracy = recorded(tmp_path / "run", label)["Validation, %"]
        of_setting = values[(values["weights"] == setting.name) & (values["quantity"] == "Validation, %")]
        assert of_setting["value"].tolist() == [pytest.approx(accuracy, abs=1)]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"(?s)N_s.*got 0.*N_e.*got 0\.5.*tolerance_ratio=-1"):
        Tune(n_converge=(0, 3), n_tolerance=(6, 0.5), tolerance_ratio=(-1, 0.3))
    with pytest.raises(ValueError, match="n-converge needs a value, got none"):
        Tune(n_converge=())
    with pytest.raises(ValueError, match="select must be one of iid, oracle, got 'last'"):
        Tune(select="last")
    assert Tune(n_tolerance=(float("inf"),)).grid[0].name == "1,inf,0.1,paper"


def test_runs_whose_unselected_weights_were_removed_can_still_be_tuned(fresh):
    before = measure(fresh, ONE)
    for path in (*fresh.glob("paper-*/weights/*.safetensors"), *fresh.glob("paper-*/tune.jsonl")):
        if path.stem != "swa":
            path.unlink()
    assert measure(fresh, ONE).equals(before)
    for path in (*fresh.glob("paper-*/weights/*"), *fresh.glob("paper-*/tune.jsonl")):
        path.unlink()
    with pytest.raises(RunError, match="no weights left"):
        measure(fresh, ONE)
