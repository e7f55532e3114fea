"""`swad robustness` on ImageNet's benchmarks: known answers, killed and resumed, partial results, models by name."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from helpers.imagenet_trees import (
    DOG,
    FOLDERS,
    GOLDFISH,
    INPUT,
    Answers,
    constant_network,
    make_backgrounds,
    make_imagenet,
    make_imagenet_c,
    make_imagenet_r,
)
from swad.robustness import backgrounds
from swad.robustness.corruptions import SEVERITIES
from swad.robustness.evaluation import decode
from swad.robustness.imagenet_c import ALEXNET_CLEAN_ERROR, ALEXNET_ERRORS, EXTRA
from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.transforms import eval_transform
from swad.testbed.measure import engine, imagenet_models
from swad.testbed.measure import imagenet as imagenet_file
from swad.testbed.measure.imagenet import Benchmarks, ImageNet, plan_models, stored_results
from swad.testbed.measure.imagenet_models import ImageNetModel, find_models
from swad.testbed.measure.imagenet_report import corruption_table, notes, score_table, scores
from swad.testbed.measure.saved_run import SavedRun
from swad.testbed.results.imagenet_parts import PartResult, stored_values
from swad.testbed.results.measurement_rows import RowFile, read_rows
from swad.testbed.results.run_data import RunData
from swad.testbed.training.config import RunConfig
from swad.testbed.training.run_dir import RunError

CONFIG = ImageNet()


def measure_benchmarks(models, benchmarks, what=CONFIG):
    jobs = plan_models(models, benchmarks, what)
    engine.measure(jobs, workers=0)
    return stored_results(jobs)


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> Benchmarks:
    root = tmp_path_factory.mktemp("trees")
    return Benchmarks(
        make_imagenet(root / "imagenet"),
        make_imagenet_c(root / "c"),
        make_imagenet_r(root / "r"),
        make_backgrounds(root / "bg"),
    )


def answers(directory: Path, label: str = "answers") -> ImageNetModel:
    return ImageNetModel(label, label, directory, "0123", INPUT, 1000, Answers)


def test_scores_of_a_model_that_is_right_on_given_images(trees, tmp_path):
    model = answers(tmp_path)
    (parts,) = measure_benchmarks([model], trees, CONFIG).values()
    found = {name: score.value for name, score in scores(parts).items()}
    # A challenge of less than a minute stores no state.
    assert {row["kind"] for row in read_rows(tmp_path, "robustness.jsonl")} == {"settings", "benchmark", "shown"}
    assert all(score.partial for score in scores(parts).values())
    ratios = [3 / sum(errors) for errors in ALEXNET_ERRORS.values()]  # errors of 1/5 to 5/5 add up to 3
    clean = 1 / 3
    relative = [(3 - 5 * clean) / (sum(errors) - 5 * ALEXNET_CLEAN_ERROR) for errors in ALEXNET_ERRORS.values()]
    expected = {
        "ImageNet top-1": 400 / 6,
        "mCE, normalized by AlexNet": 100 * sum(ratios) / 15,
        "relative mCE, normalized by AlexNet": 100 * sum(relative) / 15,
        "mean error over 15 corruptions": 60,
        "mean error over 19 corruptions": 60 * 15 / 19,
        "ImageNet-R, among its 200 classes": 75,
        "ImageNet, among the same 200": 200 / 3,
        "gap to ImageNet-R": 200 / 3 - 75,
        "IN-9 original": 100,
        "IN-9 mixed_same": 100,
        "IN-9 mixed_rand": 50,
        "IN-9 only_bg_t": 100,
        "BG-Gap: mixed_same - mixed_rand": 50,
        "Background Challenge": found["Background Challenge"],
    }
    assert list(found) == list(expected)
    assert found == pytest.approx(expected)
    # Half of each composed image is its background: the classifier sees a class in between.
    assert found["Background Challenge"] < 100
    table = corruption_table("answers", parts)
    fog = next(row for row in table.rows if row.name == "fog")
    assert [cell.printed for cell in fog.cells[:6]] == ["20.0*", "40.0*", "60.0*", "80.0*", "100.0*", "60.0*"]
    assert fog.cells[6].value == pytest.approx(300 / sum(ALEXNET_ERRORS["fog"]))
    text = " ".join(notes([model], trees, {"answers": parts}))
    assert "lacks mixed_next, only_fg, no_fg, only_bg_b" in text
    assert "imagenet: 6 of 50,000 images, no image of n01484850" in text
    assert "backgrounds/original, backgrounds/mixed_same, backgrounds/mixed_rand and 1 more: 18 of 4,050" in text
    assert "backgrounds/challenge: 18 of 4,050 images on 18 of 4,050 backgrounds" in text
    assert "images that are stored at another size than 8 pixels were resized" in text
    by_quantity = stored_values({"answers": [parts]}).set_index("quantity")["value"]
    by_severity = {severity: value for severity, value in by_quantity.items() if not isinstance(severity, str)}
    assert by_severity == pytest.approx({0: 1 / 3, 1: 0.2, 2: 0.4, 3: 0.6, 4: 0.8, 5: 1.0})


def test_the_gap_is_to_imagenets_own_images_of_the_same_classes():
    counts = {"imagenet": (50_000, 40_000), "imagenet-200": (10_000, 9_000), "imagenet-r": (30_000, 12_000)}
    found = scores({name: PartResult(correct, n, n) for name, (n, correct) in counts.items()})
    assert found["ImageNet top-1"].value == pytest.approx(80)
    assert found["gap to ImageNet-R"].value == pytest.approx(90 - 40)


def test_alexnets_own_errors_have_an_mce_of_100():
    def result(error: float) -> PartResult:
        return PartResult(round(50_000 * (1 - error)), 50_000, 50_000)

    parts = {
        f"imagenet-c/{name}/{severity}": result(errors[severity - 1])
        for name, errors in ALEXNET_ERRORS.items()
        for severity in SEVERITIES
    }
    parts["imagenet"] = result(ALEXNET_CLEAN_ERROR)
    found = scores(parts)
    assert found["mCE, normalized by AlexNet"].value == pytest.approx(100)
    assert found["relative mCE, normalized by AlexNet"].value == pytest.approx(100)
    assert found["mean error over 15 corruptions"].value == pytest.approx(78.8993, abs=1e-3)
    assert "mean error over 19 corruptions" not in found
    assert not any(score.partial for score in found.values())
    some = scores({**parts, "imagenet": PartResult(20, 40, 50_000)})
    assert {name for name, score in some.items() if score.partial} == {
        "ImageNet top-1",
        "relative mCE, normalized by AlexNet",
    }
    one_of_four = {f"imagenet-c/{EXTRA[0]}/{severity}": result(0.5) for severity in SEVERITIES}
    assert scores({**parts, **one_of_four})["mean error over 19 corruptions"].partial
    del parts["imagenet-c/snow/3"]
    found = scores(parts)
    assert found["mCE, normalized by AlexNet"].partial
    assert found["mCE, normalized by AlexNet"].value == pytest.approx(100)  # over the other 14
    assert not found["ImageNet top-1"].partial


def test_a_killed_command_resumes(trees, tmp_path, monkeypatch):
    """A process is killed while it writes its third row; another one evaluates only what is missing."""
    small = Benchmarks(trees.imagenet, None, trees.imagenet_r, trees.backgrounds)
    model, expected = answers(tmp_path / "killed"), answers(tmp_path / "whole")

    def die() -> None:
        append, count = RowFile.append, 0

        def dying(self, *rows):
            nonlocal count
            count += any(row["kind"] == "benchmark" for row in rows)
            if count == 3:
                with self.path.open("a") as file:
                    file.write('{"v": 1, "key": "half a li')
                os.kill(os.getpid(), signal.SIGKILL)
            append(self, *rows)

        RowFile.append = dying
        measure_benchmarks([model], small, CONFIG)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    stored = [row["part"] for row in read_rows(model.directory, "robustness.jsonl") if row["kind"] == "benchmark"]
    assert stored == ["imagenet", "imagenet-200"]

    evaluated = []
    real = imagenet_file.evaluate
    monkeypatch.setattr(
        imagenet_file,
        "evaluate",
        lambda models, parts, **options: (
            evaluated.extend(part.name for part, _ in parts),
            real(models, parts, **options),
        )[1],
    )
    resumed = measure_benchmarks([model], small, CONFIG)
    assert evaluated[0] == "imagenet-r"
    assert not {"imagenet", "imagenet-200"} & set(evaluated)
    assert resumed == {"answers": measure_benchmarks([expected], small, CONFIG)["answers"]}
    evaluated.clear()
    assert measure_benchmarks([model], small, CONFIG) == resumed
    assert evaluated == []


def test_the_challenge_resumes_from_its_last_state(trees, tmp_path, monkeypatch):
    model, only = answers(tmp_path / "killed"), Benchmarks(backgrounds=trees.backgrounds)
    monkeypatch.setattr(imagenet_file, "SECONDS", 0.0)
    expected = measure_benchmarks([answers(tmp_path / "whole")], only, CONFIG)
    measure_benchmarks([model], only, CONFIG)
    file = tmp_path / "killed/robustness.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    states = [number for number, line in enumerate(lines) if '"challenge-state"' in line]
    file.write_text("".join(lines[: states[1]]))  # killed after the first state
    (state,) = [json.loads(line) for line in lines[states[0] : states[1]]]
    seen = []
    real = backgrounds.recognized_objects
    monkeypatch.setattr(
        backgrounds,
        "recognized_objects",
        lambda *positional, state, **options: (seen.append(state), real(*positional, state=state, **options))[1],
    )
    assert measure_benchmarks([model], only, CONFIG) == expected
    assert (seen[0].position, list(seen[0].recognized)) == (state["position"], state["recognized"])


def test_changed_images_weights_and_precision_are_evaluated_again(tmp_path):
    root = make_imagenet(tmp_path / "imagenet")
    model, only = answers(tmp_path / "rows"), Benchmarks(imagenet=root)

    def top1(changed: ImageNetModel, config: ImageNet = CONFIG) -> PartResult:
        return measure_benchmarks([changed], only, config)["answers"]["imagenet"]

    assert top1(model) == PartResult(4, 6, 50_000, top1(model).missing)
    shutil.rmtree(root / "val/n02099601")
    assert (top1(model).correct, top1(model).n) == (3, 5)
    other = ImageNetModel("answers", "answers", model.directory, "4567", INPUT, 1000, Answers)
    top1(other)
    top1(model, ImageNet(precision="bf16"))
    rows = [row for row in read_rows(model.directory, "robustness.jsonl") if row["kind"] == "benchmark"]
    assert len(rows) == 4


def test_models_of_one_input_share_a_table(trees, tmp_path):
    only = Benchmarks(imagenet_r=trees.imagenet_r)
    both = [answers(tmp_path, "first"), answers(tmp_path, "second")]
    results = measure_benchmarks(both, only, CONFIG)
    table = score_table(results, notes(both, only, results))
    assert table.columns == ("first", "second")
    assert [cell.printed for cell in table.rows[0].cells] == ["75.00*", "75.00*"]
    assert (
        "ImageNet (--imagenet), ImageNet-C (--imagenet-c), the Background Challenge (--backgrounds)" in table.notes[0]
    )


def test_models_with_another_crop_see_other_images(tmp_path):
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[4:12, 4:12] = (DOG // 32 * 8, DOG % 32 * 8, 0)
    (tmp_path / "val" / FOLDERS[DOG]).mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "val" / FOLDERS[DOG] / "x.png")
    models = [replace(answers(tmp_path, str(crop)), input=INPUT._replace(crop=crop)) for crop in (1.0, 0.5)]
    results = measure_benchmarks(models, Benchmarks(tmp_path), CONFIG)
    assert {label: parts["imagenet"].correct for label, parts in results.items()} == {"1.0": 0, "0.5": 1}


def test_a_challenge_on_some_of_the_backgrounds_is_partial():
    assert not PartResult(5, 4050, 4050, backgrounds=4050).partial
    parts = {backgrounds.CHALLENGE: PartResult(5, 4050, 4050, backgrounds=4049)}
    assert scores(parts)["Background Challenge"].partial
    text = " ".join(notes([], Benchmarks(), {"answers": parts}))
    assert "backgrounds/challenge: 4,050 of 4,050 images on 4,049 of 4,050 backgrounds" in text


def test_missing_severities_are_named(tmp_path):
    root = make_imagenet_c(tmp_path / "c", without=("frost",))
    shutil.rmtree(root / "weather/fog/2")
    model, only = answers(tmp_path), Benchmarks(imagenet_c=root)
    results = measure_benchmarks([model], only, CONFIG)
    assert "lacks frost, fog at 2: its scores are over the 13 of 15" in " ".join(notes([model], only, results))
    assert scores(results["answers"])["mean error over 15 corruptions"].value == pytest.approx(60)
    fog = next(row for row in corruption_table("answers", results["answers"]).rows if row.name == "fog")
    assert [cell.printed for cell in fog.cells] == ["20.0*", "–", "60.0*", "80.0*", "100.0*", "–", "–"]


def test_the_command_on_a_model_that_always_answers_dog(here, trees, tmp_path):
    model = constant_network(tmp_path / "dog.safetensors", DOG)
    command = ("robustness", model, "--imagenet", trees.imagenet, "--backgrounds", trees.backgrounds)
    command += ("--imagenet-c", trees.imagenet_c / "noise")
    done = here(*command, "--output", tmp_path / "out", "--workers", "0", "--device", "cpu")
    lines = {" ".join(line.split()[:-1]): line.split()[-1] for line in done.stdout.splitlines() if line.strip()}
    assert lines["Background Challenge"] == "11.11*"  # dogs are recognized on every background, and nothing else
    assert lines["BG-Gap: mixed_same - mixed_rand"] == "0.00*"
    assert lines["ImageNet top-1"] == "16.67*"
    stored = json.loads((tmp_path / "out/imagenet.json").read_text())
    by_corruption = [line.split(",") for line in (tmp_path / "out/imagenet-c.csv").read_text().splitlines()]
    wrong = {(line[1], line[3]): line[4] for line in by_corruption}
    assert wrong["shot_noise", "severity 2"] == "100.0"  # all are tench
    assert float(wrong["shot_noise", "CE"]) == pytest.approx(500 / sum(ALEXNET_ERRORS["shot_noise"]))
    assert "must be one of fp32, bf16" in here(*command, "--precision", "fp16", code=1).stderr
    assert "swad measure corruption RUN" in here("robustness", model, code=1).stderr
    refused = here("robustness", "resnet50.tv_in1k", "--imagenet-r", tmp_path / "nowhere", code=1)
    assert f"--imagenet-r must be a directory, got {tmp_path / 'nowhere'}: check the path" in refused.stderr
    assert "download" not in refused.stderr
    assert stored["test_resnet (dog)"]["Background Challenge"] == {"value": pytest.approx(100 / 9), "partial": True}


def saved_weights(path: Path, classes: list[str], algorithm: str = "erm", **input: object) -> str:
    card = {
        "classes": classes,
        "input": {"size": 8, "channels": 3, "mean": [0.5] * 3, "std": [0.5] * 3, **input},
        "algorithm": algorithm,
        "config": {"training": {"hyperparameters": {}}},
    }
    save_file({"head.bias": torch.zeros(len(classes))}, path, metadata={"swad": json.dumps(card)})
    return str(path)


@pytest.mark.parametrize("size", [160, 161, 224])
def test_runs_are_evaluated_as_in_training(tmp_path, size):
    weights = saved_weights(tmp_path / "swad.safetensors", ["n02099601"], size=size)
    (model,), _ = find_models([weights], (), tmp_path)
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (250, 301, 3), np.uint8))
    expected = eval_transform(ImageSpec(size, center_crop=True))(image)
    assert torch.equal(decode(image, model.input, stored=False).permute(2, 0, 1), expected)


def test_weights_of_runs_are_in_the_order_of_the_request(tmp_path, monkeypatch):
    def run(schedule: str, *weights: str) -> SavedRun:
        path = tmp_path / schedule
        path.mkdir()
        for name in weights:
            saved_weights(path / f"{name}.safetensors", ["n02099601"])
        config = RunConfig.from_options(dataset="imagenet", target=(), output=path, lr_schedule=schedule)
        return SavedRun(path, config, {name: f"{name}.safetensors" for name in weights})

    runs = [run("constant", "last", "swad", "step-000300"), run("decay", "last", "ema")]
    monkeypatch.setattr(imagenet_models, "open_runs", lambda paths, data: (runs, []))
    settings = {"algorithm": "erm", "recipe": "imagenet"}
    monkeypatch.setattr(
        imagenet_models, "load_run", lambda path: RunData(path, {**settings, "lr_schedule": path.name}, (), True)
    )
    models, _ = find_models([str(tmp_path)], (), tmp_path)
    assert [model.label for model in models] == ["ERM (last, constant)", "ERM (last)", "SWAD", "EMA"]
    models, _ = find_models([str(tmp_path)], ("ema", "swad"), tmp_path)
    assert [model.label for model in models] == ["EMA", "SWAD"]
    models, _ = find_models([str(tmp_path)], ("ema", "swad", "300"), tmp_path)
    assert [model.weights for model in models] == ["ema", "swad", "step-000300"]
    models, skipped = find_models([str(tmp_path)], ("ema",), tmp_path)
    assert [model.label for model in models] == ["EMA"]
    assert skipped == [f"skipped {tmp_path / 'constant'}, which has none of ema"]


def test_models_are_found_by_name_and_file(tmp_path):
    nine = constant_network(tmp_path / "nine.safetensors", 0, n_classes=9)
    (model,), _ = find_models([nine], (), tmp_path)
    assert (model.n_outputs, model.input.mean) == (9, backgrounds.MEAN)
    assert model.input.size == 160
    of_two = saved_weights(tmp_path / "two=2.safetensors", ["n02099601", "n01443537"])
    (model,), _ = find_models([of_two], (), tmp_path)
    assert (model.classes, model.n_outputs, model.label) == ((DOG, GOLDFISH), 2, "two=2")
    numbered = saved_weights(tmp_path / "numbered.safetensors", [str(label) for label in range(1000)])
    (model,), _ = find_models([numbered], (), tmp_path)
    assert (model.classes, model.n_outputs) == (None, 1000)  # ImageNet's, in their order
    for argument, message in (
        (constant_network(tmp_path / "ten.safetensors", 0, n_classes=10), "has 10 classes"),
        (f"test_vit={tmp_path / 'ten.safetensors'}", "does not fit"),
        ("resnet5", "there is no directory resnet5, and timm has no network 'resnet5': did you mean"),
        ("runs/missing", "there is no directory runs/missing"),
        (saved_weights(tmp_path / "digits.safetensors", ["0", "1", "2"]), "the classes of .* are 0, 1, 2"),
        (saved_weights(tmp_path / "gray.safetensors", ["n01440764"], channels=1), "takes images of 1 channel"),
        (saved_weights(tmp_path / "arm.safetensors", ["n01440764"], "arm"), "depend on the batch"),
        (str(tmp_path / "ten.safetensors"), "has no model card"),
    ):
        with pytest.raises((RunError, ValueError), match=message):
            find_models([argument], ("best",), tmp_path)
    with pytest.raises(RunError, match="given twice"):
        find_models([nine, nine], (), tmp_path)
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files.append(saved_weights(tmp_path / name / "last.safetensors", ["n02099601"]))
    models, _ = find_models(files, (), tmp_path)
    assert [model.label for model in models] == ["last (a/last.safetensors)", "last (b/last.safetensors)"]


def test_a_classifier_of_the_nine_classes_takes_the_backgrounds_alone(trees, tmp_path):
    nine = constant_network(tmp_path / "nine.safetensors", 0, n_classes=9)
    models, _ = find_models([nine], (), tmp_path)
    (parts,) = measure_benchmarks(models, Benchmarks(trees.imagenet, backgrounds=trees.backgrounds), CONFIG).values()
    assert {name: part.correct for name, part in parts.items()} == {
        "backgrounds/original": 2,
        "backgrounds/mixed_same": 2,
        "backgrounds/mixed_rand": 2,
        "backgrounds/only_bg_t": 2,
        "backgrounds/challenge": 2,
    }
