from pathlib import Path

import pytest

from swad.experiments import paper

pytest.importorskip("matplotlib")


def test_recipes_share_runs_and_take_the_papers_weights():
    setting = paper.Setting("pacs", Path("out"), data=Path("data"), network="resnet18", trials=2)
    three, four, five = (recipe(setting).configs for recipe in paper.RECIPES.values())
    assert four == five == three[: len(four)]
    assert len(four) == 2 * 4
    assert four[0].files.snapshots == (2500, 3500, 4500)
    assert len(three) == 3 * len(four)
    kinds = [(config.training.algorithm, config.training.lr_schedule, config.evaluation.averages) for config in three]
    assert set(kinds) == {("erm", "constant", ("swad", "swa")), ("sam", "constant", ()), ("erm", "cyclic", ("swa",))}
    assert len({config.output for config in three}) == len(three)
