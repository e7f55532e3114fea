"""Errors of saved weights under corruption: against a slow loop, resumed, and as tables."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from helpers.measured_runs import replace_rows
from swad.robustness.corruptions import VERSION, corrupt
from swad.testbed.data.transforms import Normalize, eval_transform, to_pil
from swad.testbed.experiments.run_robustness import CorruptionConfig, measure_corruptions
from swad.testbed.measure.saved_run import open_run, stratified_subset
from swad.testbed.results.corruption_errors import ROBUSTNESS, read_corruption_errors, severity_curves
from swad.testbed.results.corruption_tables import cases_csv, comparison_table, corruption_summary, corruption_table
from swad.testbed.results.runs import load_run
from swad.testbed.training.config import RunConfig
from swad.testbed.training.loop import train

CONFIG = CorruptionConfig(("fog", "gaussian_noise"), (1, 5), n_images=30, seed=3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("robustness")
    for trial in (0, 1):
        train(
            RunConfig.from_options(
                dataset="digits",
                target="paper",
                output=root / f"paper-{trial}",
                trial=trial,
                steps=20,
                evaluate_every=10,
                averages=("swa",),
            )
        )
    return root


def test_errors_are_those_of_a_loop_over_images(trained):
    run = open_run(trained / "paper-0")
    rows = measure_corruptions(run, ["swa"], CONFIG)
    assert len(rows) == 5 * 4  # images as they are, and two corruptions at two severities; four domains
    model = run.model("swa")
    sources, target = run.held_out
    spec = sources.image_spec
    for side, splits in (("seen", sources.val), ("unseen", target.full)):
        for split in splits:
            subset = stratified_subset(split, 30)
            wrong = 0
            for key in subset.keys.tolist():
                image = eval_transform(spec)(to_pil(subset.domain.image(key)))[None]
                image = corrupt(image, "fog", 5, seed=3, indices=torch.tensor([key]))
                predicted = model(Normalize(spec)(image)).argmax().item()
                wrong += predicted != subset.domain.labels[key]
            (row,) = [r for r in rows if (r["corruption"], r["severity"], r["domain"]) == ("fog", 5, split.name)]
            assert (row["error"], row["side"], row["n"]) == (wrong / 30, side, 30)


def test_a_measurement_resumes_and_extends(trained):
    run = open_run(trained / "paper-1")
    calls = []
    measure_corruptions(run, ["swa"], CorruptionConfig(("fog",), (1,), n_images=30, seed=3))
    file = run.path / "robustness.jsonl"
    before = file.read_bytes()
    file.write_bytes(before[:-20])  # killed while the last row was written
    rows = measure_corruptions(run, ["swa"], CONFIG, progress=lambda *call: calls.append(call))
    again = measure_corruptions(run, ["swa"], CONFIG, progress=lambda *call: calls.append(call))
    assert rows == again
    assert len(calls) == 5  # the second time nothing was measured
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    cases = [(line["corruption"], line["severity"], line["domain"]) for line in lines if line["kind"] == "error"]
    assert len(set(cases)) == 5 * 4


def test_an_interrupted_measurement_of_new_weights_is_not_mixed_with_that_of_the_old(trained, tmp_path):
    shutil.copytree(trained / "paper-0", tmp_path / "run")
    run = open_run(tmp_path / "run")

    def shown():
        return [results.errors for results in read_corruption_errors([load_run(run.path)])]

    measure_corruptions(run, ["swa"], CONFIG)
    old = shown()
    file = "weights/swa.safetensors"
    shutil.copy(trained / "paper-1" / file, run.path / file)  # as if trained again
    with pytest.raises(KeyboardInterrupt):
        measure_corruptions(run, ["swa"], CONFIG, progress=interrupt_after(2))
    assert shown() == old
    measure_corruptions(run, ["swa"], CONFIG)
    assert shown() != old


def interrupt_after(n_cases):
    def progress(description, done, total):
        if done == n_cases:
            raise KeyboardInterrupt

    return progress


def _is(row, *values):
    return tuple(row[name] for name in ("side", "weights", "corruption", "severity")) == values


def test_tables_average_over_trials_and_compare(trained):
    runs = [open_run(trained / f"paper-{trial}") for trial in (0, 1)]
    rows = [measure_corruptions(run, ["best", "swa"], CONFIG) for run in runs]
    results = read_corruption_errors([load_run(run.path) for run in runs])
    assert [(each.dataset, each.side) for each in results] == [("digits", "seen"), ("digits", "unseen")]
    unseen = results[1]
    table = corruption_table(unseen)
    assert table.columns == ("Clean", "Corrupted", "Added", "noise", "weather")
    expected = [
        [
            row["error"]
            for row in measured
            if row["side"] == "unseen" and row["weights"] == "swa" and row["severity"] > 0
        ]
        for measured in rows
    ]
    by_trial = [sum(errors) / len(errors) for errors in expected]
    cell = next(row for row in table.rows if row.name == "SWA").cells[1]
    assert cell.value == pytest.approx(100 * sum(by_trial) / 2)
    comparison = comparison_table(unseen)
    assert comparison.title == "Compared with ERM (best): digits, unseen"
    assert [row.name for row in comparison.rows] == ["SWA, clean", "SWA, corrupted"]
    baseline = next(row for row in table.rows if row.name == "ERM (best)").cells[1]
    assert comparison.rows[1].cells[0].value == pytest.approx(cell.value - baseline.value)
    expected = [row["error"] for measured in rows for row in measured if _is(row, "unseen", "swa", "fog", 5)]
    line = next(line for line in cases_csv([unseen]).splitlines() if line.startswith("digits,unseen,SWA,fog,5,"))
    assert float(line.split(",")[5]) == pytest.approx(100 * sum(expected) / 2)
    assert line.split(",")[7] == "2"
    curve = severity_curves(unseen)["SWA"]
    assert list(curve) == [0, 1, 5]
    assert (curve[1].mean + curve[5].mean) / 2 == pytest.approx(sum(by_trial) / 2)
    assert curve[0].mean == pytest.approx(next(row for row in table.rows if row.name == "SWA").cells[0].value / 100)
    for run in runs:
        measure_corruptions(run, ["swa", "best"], CONFIG)
    (_, unseen) = read_corruption_errors([load_run(run.path) for run in runs])
    assert comparison_table(unseen).title == "Compared with SWA: digits, unseen"
    for run, name in zip(runs, ("swa", "best"), strict=True):
        measure_corruptions(run, [name], CONFIG)
    averaged, erm = (load_run(run.path) for run in runs)
    assert read_corruption_errors([averaged, erm])[0].methods == ["SWA", "ERM (best)"]
    # The training of the imagenet recipe that decays to zero is ERM, with which the others are compared.
    erm = replace(erm, config={**erm.config, "lr_schedule": "decay"})
    assert read_corruption_errors([averaged, erm])[0].methods == ["ERM (best)", "SWA"]
    measure_corruptions(runs[1], ["best"], replace(CONFIG, n_images=3))
    apart = read_corruption_errors([load_run(run.path) for run in runs])
    assert [each.title for each in apart if each.side == "unseen"] == [
        "digits, 3 images, seed 3, unseen",
        "digits, 30 images, seed 3, unseen",
    ]
    stated = [(each["side"], each["settings"]["images"]) for each in corruption_summary(apart)]
    assert stated == [("seen", 3), ("unseen", 3), ("seen", 30), ("unseen", 30)]
    # Errors that were measured with the first definitions of corruptions are not mixed with new ones.
    measure_corruptions(runs[1], ["best"], CONFIG)
    for version, differs in ((None, ", bytes rounded to the nearest, dark frost"), (2, ", dark frost")):
        replace_rows(runs[1].path, ROBUSTNESS, lambda row, version=version: _with_version(row, version))
        apart = read_corruption_errors([load_run(run.path) for run in runs])
        assert [each.title for each in apart if each.side == "unseen"] == [
            f"digits, 30 images, seed 3{differs}, unseen",
            "digits, 30 images, seed 3, unseen",
        ]


def _with_version(row, version):
    """Return the row as another version of the corruptions wrote it; the first one did not state itself."""
    if row["kind"] != "settings":
        return row
    others = {name: value for name, value in row.items() if name != "version"}
    return others if version is None else {**others, "version": version}


@pytest.mark.slow
def test_the_command_prints_tables_and_draws_curves(here, trained, tmp_path):
    done = here(
        *("robustness", trained, "--corruptions", "fog", "--severities", "1", "--images", "30"),
        *("--output", tmp_path, "--device", "cpu"),
    )
    assert "Corruption error: digits, unseen" in done.stdout
    assert "do not compare with errors on its stored images" in " ".join(done.stdout.split())
    assert {path.name for path in tmp_path.iterdir()} == {
        f"robustness.{suffix}" for suffix in ("svg", "pdf", "png", "json", "csv")
    }
    content = json.loads((tmp_path / "robustness.json").read_text())
    assert [(each["side"], each["settings"]) for each in content["results"]] == [
        ("seen", {"images": 30, "seed": 0, "version": VERSION}),
        ("unseen", {"images": 30, "seed": 0, "version": VERSION}),
    ]


def test_bad_settings_are_listed_together():
    with pytest.raises(ValueError, match=r"no corruption 'fogg'.*severities must be from 1 to 5, got 0, 7"):
        CorruptionConfig(("fogg",), (0, 7))
