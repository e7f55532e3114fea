from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from swad.experiments import paper


def test_figures_share_runs_and_take_the_papers_weights():
    figure = paper.FigureConfig("pacs", Path("out"), data=Path("data"), network="resnet18", trials=2)
    three, four, five = (plan(figure).configs for plan in paper.FIGURES.values())
    assert four == five == three[: len(four)]
    assert len(four) == 2 * 4
    assert {2500, 3500, 4500} < set(four[0].files.snapshots)
    assert len(three) == 3 * len(four)
    trainings = {
        (config.training.algorithm, config.training.lr_schedule, config.evaluation.averages) for config in three
    }
    assert trainings == {("erm", "constant", ("swad", "swa")), ("sam", "constant", ()), ("erm", "cyclic", ("swa",))}
    assert len({config.output for config in three}) == len(three)


def test_figure3_trains_only_what_its_methods_need():
    figure = paper.FigureConfig("digits", Path("out"), targets=("paper",), methods=("swad", "swa-cyclic"))
    names = {config.output.parent.name for config in paper.figure3(figure).configs}
    assert names == {"erm", "erm-cyclic"}


def test_unknown_names_are_rejected():
    with pytest.raises(ValueError, match="figures that can be reproduced are figure3, figure4, figure5; got 'figure1'"):
        paper.reproduce("figure1", paper.FigureConfig("digits", Path("out")))
    with pytest.raises(ValueError, match="--live-weights must be best or last, got 'first'"):
        paper.figure3(paper.FigureConfig("digits", Path("out"), live_weights="first"))
