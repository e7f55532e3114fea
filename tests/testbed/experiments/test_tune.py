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
from swad.testbed.experiments import tune, tune_runs
from swad.testbed.measure import kept_segments
from swad.testbed.measure.saved_run import open_run
from swad.testbed.results.tuning import TuneRow, ValleySetting, choose
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
GRID = tune.grid((1, 3), (1, 6), (0.0, 0.3), ("paper", "text", "reference"))
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


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "tune.jsonl").read_text().splitlines()]


def test_the_settings_of_the_run_give_the_saved_weights_to_the_bit(runs, tmp_path):
    (run, _), _ = tune_runs.find_tunable([runs], None)
    assert {row.setting for row in run.trained()} == set(OWN.values())
    assert len({row.spans for row in run.trained()}) == len(OWN), "the averages must differ, or the test shows little"
    for label, setting in OWN.items():
        path = tune_runs.save_average(run, run.row(setting), tmp_path / label, CPU)
        tuned, saved = load_file(path), load_file(runs / "paper-0" / "weights" / f"{label}.safetensors")
        assert tuned.keys() == saved.keys()
        assert all(torch.equal(tuned[name], saved[name]) for name in saved), label


def test_accuracies_and_steps_are_those_that_the_run_recorded(fresh):
    rows = {(row.run, row.setting): row for row in tune.sensitivity([fresh], list(OWN.values()))}
    result = tune.tune([fresh], list(OWN.values()))
    assert len(result.trained) == 8
    for row in result.trained:
        assert rows[row.run, row.setting] == row


def test_a_run_with_an_average_whose_file_is_gone_can_be_tuned(runs):
    run = tune_runs.find_tunable([runs], None)[0][0]
    averages = ("gone:skip=0.5", *run.saved.config.averages)
    saved = dataclasses.replace(run.saved, config=dataclasses.replace(run.saved.config, averages=averages))
    assert dataclasses.replace(run, saved=saved).trained() == run.trained()


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
    (run,), _ = tune_runs.find_tunable([tmp_path / "runs"], None)
    assert tune.sensitivity([tmp_path / "runs"], [setting]) == list(run.trained())
    tuned = load_file(tune_runs.save_average(run, run.row(setting), tmp_path / "tuned", CPU))
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
    (run, _), _ = tune_runs.find_tunable([runs], None)
    steps, losses = list(run.losses), list(run.losses.values())
    weights = averaged(losses, steps, STEPS, semantics, n_converge, n_tolerance, 1 + ratio)
    row = run.row(setting)
    assert (row.first_step, row.last_step) == (min(weights), max(weights))
    model = run.saved.model("last")
    (average,) = tune_runs._replay(run.saved, model, {row.spans: setting}).values()
    with tune_runs._never_converged_ignored():
        state = average.averaged_state()
    for name, tensor in state.items():
        want = sum(float(w) * every_weight[step - 1][name].double() for step, w in weights.items())
        torch.testing.assert_close(tensor.double(), want, rtol=1e-5, atol=1e-7)


def test_equal_averages_are_evaluated_once_and_an_interrupted_search_resumes(fresh, monkeypatch):
    evaluate, count, limit = tune_runs.evaluate_splits, 0, 3

    def limited(*arguments):
        nonlocal count
        count += 1
        if count > limit:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(tune_runs, "evaluate_splits", limited)
    with pytest.raises(KeyboardInterrupt):
        tune.sensitivity([fresh], GRID, target=False)
    before = rows_of(fresh / "paper-0")
    assert len(before) == 1 + 3
    with (fresh / "paper-0" / "tune.jsonl").open("a") as file:
        file.write('{"v": 1, "key": "half a li')
    limit = 10**6
    rows = tune.sensitivity([fresh], GRID, target=False)
    after = rows_of(fresh / "paper-0")
    assert after[:4] == before
    averages = [row["average"] for row in after[1:]]
    assert len(averages) == len(set(averages)) == len({row.spans for row in rows if row.run.endswith("paper-0")})
    assert len(averages) < len(GRID) / 2
    done = count
    assert tune.sensitivity([fresh], GRID, target=False) == rows
    assert count == done, "everything is stored"
    monkeypatch.setattr(tune_runs, "sha256", lambda path: "records of another training")
    tune.sensitivity([fresh], GRID[:1], target=False)
    assert count == done + 2


def test_the_target_is_evaluated_for_the_chosen_setting_alone(fresh):
    result = tune.tune([fresh], GRID)
    (setting,) = result.chosen.values()
    scores = {}
    for row in result.rows:
        assert (row.target_in is not None) == (row.setting == setting)
        scores.setdefault(row.setting, []).append(row.validation)
    assert sum(scores[setting]) == max(map(sum, scores.values()))
    for path in (fresh / "paper-0", fresh / "paper-1"):
        (row,) = (row for row in result.rows if row.run == str(path) and row.setting == setting)
        assert [row["average"] for row in rows_of(path) if row["kind"] == "target"] == [row.spans]
    oracle = tune.tune([fresh], GRID, select="oracle")
    (chosen,) = oracle.chosen.values()
    targets = {}
    for row in oracle.rows:
        targets.setdefault(row.setting, []).append(row.target_out)
    assert sum(targets[chosen]) == max(map(sum, targets.values()))


def test_among_equal_settings_the_one_most_like_the_training_is_chosen(fresh):
    never_converge = [ValleySetting(7, 6, 0.9), ValleySetting(7, OWN["swad"].n_tolerance, OWN["swad"].tolerance_ratio)]
    assert list(tune.tune([fresh], never_converge).chosen.values()) == never_converge[1:]


accuracies = st.lists(st.sampled_from([0.2, 0.4, 0.6]), min_size=36, max_size=36)


@given(accuracies, accuracies, st.sampled_from(["A", None]))
def test_only_the_oracle_sees_the_target(validation, target, counts_from):
    grid = tune.grid((1, 2, 3), (3, 6), (0.2, 0.3))
    rows = [
        TuneRow("run", name, "erm", "t", 0, setting, "1-2", 1, 2, 2, 1.0, 1.3, value, seen, seen)
        for (name, setting), value, seen in zip(
            [(name, setting) for name in ("A", "B", "C") for setting in grid], validation, target, strict=True
        )
    ]
    blind = [dataclasses.replace(row, target_in=None, target_out=None) for row in rows]
    chosen = choose(rows, counts_from=counts_from)
    assert chosen == choose(blind, counts_from=counts_from)
    moved = [dataclasses.replace(row, validation=row.target_out) for row in rows]
    assert choose(rows, "oracle", counts_from=counts_from) == choose(moved, counts_from=counts_from)
    if counts_from:
        assert len({(setting.n_converge, setting.n_tolerance) for setting in chosen.values()}) == 1


def test_runs_without_segments_show_the_steps_of_every_setting(fresh, tmp_path):
    shutil.rmtree(fresh / "paper-1" / "segments")
    both = tune.tune([fresh], GRID)
    assert any("1 of 2 runs kept no segments" in note and "--keep-segments" in note for note in both.notes)
    assert {row.run for row in both.rows if row.validation is not None} == {str(fresh / "paper-0")}
    shutil.rmtree(fresh / "paper-0" / "segments")
    bare = tune.tune([fresh], GRID)
    assert not bare.chosen
    assert [row.spans for row in bare.rows] == [row.spans for row in both.rows]
    report = tune.report_tuning(bare, tmp_path / "out")
    assert [path.name for path in report.written] == ["tuning.csv"]
    assert len((tmp_path / "out" / "tuning.csv").read_text().splitlines()) == 1 + 2 * len(GRID)


def test_runs_without_a_target_are_a_group_of_their_own(runs, tmp_path):
    with_target, other = tune_runs.find_tunable([runs], None)[0]
    config = {**other.run.config, "target": None}
    without = dataclasses.replace(other, run=dataclasses.replace(other.run, config=config))
    first, second = GRID[:2]
    rows = [
        dataclasses.replace(run.row(setting), validation=accuracy)
        for run, accuracies in ((with_target, (0.5, 0.4)), (without, (0.6, 0.9)))
        for setting, accuracy in zip((first, second), accuracies, strict=True)
    ]
    chosen = choose(rows)
    assert chosen == {("digits", "erm"): first, ("digits, no target", "erm"): second}
    report = tune.report_tuning(tune.Tuning(tuple(rows), chosen, (), (), ()), tmp_path)
    assert [table.title for table in report.tables[:2]] == [
        "Settings of SWAD: digits, ERM",
        "Settings of SWAD: digits, no target, ERM",
    ]
    assert (tmp_path / "digits-no-target-erm.svg").is_file()


def test_a_run_that_stopped_early_says_how_far_its_losses_reach(tmp_path):
    rising = {"batch_size": 2, "lr": 0.08}  # the loss rises again soon
    options = {"report_live": False, "averages": (spec("swad", OWN["swad"]),), "hyperparameters": rising}
    steps = train(short(tmp_path / "stopped", **options)).steps
    assert steps < STEPS
    assert train(short(tmp_path / "kept", keep_segments=True, **options)).steps == STEPS, "tuning needs all losses"
    result = tune.tune([tmp_path], [OWN["late"]])
    assert [row.last_step for row in result.rows] == [STEPS, steps]
    (note,) = (note for note in result.notes if "stopped early" in note)
    assert note.startswith(str(tmp_path / "stopped"))
    assert note.endswith(f"beyond step {steps}")


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_tuned_there_to_the_bit(tmp_path):
    averages = tuple(spec(label, setting) for label, setting in OWN.items())
    train(short(tmp_path / "run", keep_segments=True, averages=averages, device="cuda", engine="graph"))
    (run,), _ = tune_runs.find_tunable([tmp_path], None)
    for label, setting in OWN.items():
        path = tune_runs.save_average(run, run.row(setting), tmp_path / label, torch.device("cuda"))
        tuned, saved = load_file(path), load_file(tmp_path / "run" / "weights" / f"{label}.safetensors")
        assert all(torch.equal(tuned[name], saved[name]) for name in saved), label
    rows = {row.setting: row for row in tune.sensitivity([tmp_path], list(OWN.values()), device="cuda")}
    assert all(rows[row.setting].validation == pytest.approx(row.validation, abs=0.01) for row in run.trained())


def test_bad_input_is_named(runs, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"(?s)N_s.*got 0.*N_e.*got 0\.5.*tolerance_ratio=-1"):
        tune.grid((0, 3), (6, 0.5), (-1, 0.3))
    with pytest.raises(ValueError, match="at least one value"):
        tune.grid(())
    with pytest.raises(ValueError, match="one of iid, oracle"):
        tune.tune([runs], GRID, select="last")
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"cannot be chosen on PACS: .* on digits"):
        patch.setattr(tune, "evaluate_rows", lambda *_: pytest.fail("evaluated"))
        tune.tune([runs], GRID[:1], counts_from="PACS")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(runs / "paper-0", unfinished)
    (unfinished / "done.json").unlink()
    with pytest.raises(RunError, match="skipped: unfinished"):
        tune.tune([unfinished], GRID)


def test_runs_whose_unselected_weights_were_removed_can_still_be_tuned(runs, fresh):
    before = tune.sensitivity([runs], GRID[:2])
    for path in fresh.glob("paper-*/weights/*.safetensors"):
        if path.stem != "swa":
            path.unlink()
    after = tune.sensitivity([fresh], GRID[:2])
    assert [row.target_in for row in after] == [row.target_in for row in before]
    for path in fresh.glob("paper-*/weights/*"):
        path.unlink()
    for path in fresh.glob("paper-*/tune.jsonl"):
        path.unlink()
    with pytest.raises(RunError, match="no weights left"):
        tune.sensitivity([fresh], GRID[:2])


def test_a_run_can_be_opened_after_it_was_tuned(runs):
    tune.sensitivity([runs], GRID[:1])
    assert open_run(runs / "paper-0").weights
