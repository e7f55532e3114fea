"""Table 6: which weights and folders belong to it, and its numbers on trees with known answers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from helpers.imagenet_trees import INPUT, Answers, make_backgrounds, make_imagenet, make_imagenet_c, make_imagenet_r
from swad.robustness.corruptions import CORRUPTIONS
from swad.robustness.imagenet_c import EXTRA
from swad.testbed.measure.imagenet_models import ImageNetModel
from swad.testbed.measure.saved_run import SavedRun
from swad.testbed.paper import robustness_table
from swad.testbed.paper.items import ITEMS
from swad.testbed.paper.paper_config import make_config
from swad.testbed.paper.reproduce import build_item, cost_of
from swad.testbed.paper.reproduction import PaperRuns
from swad.testbed.paper.robustness_table import find_benchmarks, find_rows, score_cell
from swad.testbed.results.imagenet_parts import PartResult
from swad.testbed.results.published import table
from swad.testbed.training.config import RunConfig
from swad.testbed.training.run_dir import RunError


@pytest.fixture
def model(monkeypatch) -> None:
    """Weights of any run are a classifier with known answers."""

    def saved_model(path: Path, label: str, weights: str, directory: Path) -> ImageNetModel:
        return ImageNetModel(label, weights, directory, str(path), INPUT, 1000, Answers)

    monkeypatch.setattr(robustness_table, "saved_model", saved_model)


def test_each_row_takes_its_own_training(tmp_path, model):
    def run(schedule: str, *weights: str, trial: int = 0) -> SavedRun:
        path = tmp_path / (f"{schedule}-{trial}" if trial else schedule)
        path.mkdir(exist_ok=True)
        for name in weights:
            (path / f"{name}.safetensors").touch()
        config = RunConfig.from_options(dataset="imagenet", target=(), output=path, lr_schedule=schedule, trial=trial)
        return SavedRun(path, config, {name: f"{name}.safetensors" for name in weights})

    decay, constant = run("decay", "best", "last", "ema"), run("constant", "best", "last", "swad")
    cyclic = run("cyclic", "best", "last", "swa")
    rows = find_rows([cyclic, constant, decay])
    assert {name: [(m.weights, m.directory.name) for m in models] for name, models in rows.items()} == {
        "ERM": [("last", "decay")],
        "EMA": [("ema", "decay")],
        "SWA": [("swa", "cyclic")],
        "SWAD": [("swad", "constant")],
    }
    second = run("constant", "best", "last", "swad", trial=1)
    assert [model.label for model in find_rows([constant, second])["SWAD"]] == ["SWAD", f"SWAD ({second.path})"]
    # Trainings of one trial are not two trials, whatever their order.
    both = [run("cyclic", "ema", "swad"), run("constant", "ema", "swa", "swad")]
    for runs in (both, both[::-1]):
        rows = find_rows(runs)
        assert {name: [m.directory.name for m in models] for name, models in rows.items()} == {
            "EMA": ["constant"],
            "SWA": ["constant"],
            "SWAD": ["constant"],
        }


def test_a_score_is_the_mean_over_trials_that_all_have_it():
    first, second = {"imagenet": PartResult(7, 10, 10)}, {"imagenet": PartResult(9, 10, 10)}
    assert score_cell([first, second], "ImageNet top-1").printed == "80.0 ± 7.1"
    assert score_cell([first, {}], "ImageNet top-1").printed == "–"
    assert score_cell([first, {"imagenet": PartResult(1, 2, 10)}], "ImageNet top-1").printed == "60.0 ± 7.1*"


def test_benchmarks_are_found_in_one_directory(tmp_path):
    for name in ("ImageNet", "imagenet-c", "imagenet_r", "bg_challenge", "PACS"):
        (tmp_path / name).mkdir()
    found = find_benchmarks(tmp_path)
    assert found.imagenet == tmp_path / "ImageNet"
    assert found.imagenet_c == tmp_path / "imagenet-c"
    assert found.imagenet_r == tmp_path / "imagenet_r"
    assert found.backgrounds == tmp_path / "bg_challenge"
    (tmp_path / "imagenet-c").rmdir()
    assert find_benchmarks(tmp_path).imagenet_c is None


def test_runs_are_compared_with_the_paper(tmp_path, tiny_run, model, monkeypatch):
    """A run with a constant learning rate has SWA and SWAD; here its last weights stand for ERM too."""
    monkeypatch.setitem(robustness_table.SCHEDULES, "ERM", ("constant",))
    data = tmp_path / "data"
    make_imagenet(data / "imagenet")
    make_imagenet_c(data / "imagenet-c", without=tuple({*CORRUPTIONS, *EXTRA} - {"fog", "saturate"}))
    make_imagenet_r(data / "imagenet-r")
    make_backgrounds(data)
    # A part of all published images has a difference.
    monkeypatch.setattr("swad.robustness.imagenet_r.N_IMAGES", 4)
    config = make_config(runs=tiny_run, data=data, output=tmp_path / "paper", device="cpu", workers=0, formats=("svg",))
    assert cost_of([ITEMS["table6"]], config).total == 0
    report = build_item(ITEMS["table6"], PaperRuns(config))
    (built,) = report.tables
    assert [(row.name, row.group) for row in built.rows] == [
        *((name, "ours") for name in ("ERM", "SWA", "SWAD")),
        *((name, "paper") for name in ("ERM", "SWA", "SWAD")),
        *((name, "ours − paper") for name in ("ERM", "SWA", "SWAD")),
    ]
    ours = dict(zip(built.columns, built.rows[2].cells, strict=True))
    assert ours["ImageNet (%) ↑"].printed == "66.7*"
    assert ours["ImageNet-C (mCE) ↓"].value == pytest.approx(30)  # saturate, one of the 19, has no error
    assert ours["mean error over 15 corruptions"].value == pytest.approx(60)
    assert ours["ImageNet-R (%) ↑"].printed == "75.0"
    difference = dict(zip(built.columns, built.rows[8].cells, strict=True))
    printed = table(6).row("SWAD (ours)")["ImageNet-R (%) ↑"].value
    assert difference["ImageNet-R (%) ↑"].value == pytest.approx(75 - printed)
    assert difference["ImageNet (%) ↑"].value is None  # partial
    assert "No run has the weights of EMA." in built.notes
    folder = config.output / "table6"
    assert {path.name for path in report.written} >= {"table6.svg", "report.html"}
    assert ">ImageNet-C, partial, stored<" in (folder / "table6.svg").read_text()
    assert "Corruption error on ImageNet-C" in (folder / "report.html").read_text()


def test_runs_need_the_benchmarks(tmp_path, tiny_run):
    config = make_config(runs=tiny_run, data=tmp_path, output=tmp_path / "paper")
    with pytest.raises(
        RunError, match=r"data \(--data\) must hold imagenet, imagenet-c, imagenet-r or bg_challenge: .* has none"
    ):
        build_item(ITEMS["table6"], PaperRuns(config))
