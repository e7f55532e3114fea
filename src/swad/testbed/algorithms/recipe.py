"""The recipe of an algorithm's own paper: the settings of training that differ from the protocol's.

An algorithm declares it as a class attribute, and `swad train ... --recipe own` trains with it:

    own_recipe = Recipe(
        optimizer="sgd",
        lr_schedule="step:at=0.6,gamma=0.1",
        epochs=100,
        freeze_bn=False,
        augmentation={"crop": 0.8, "jitter": 0.4, "grayscale": 0},
        hyperparameters={"lr": 1e-3, "weight_decay": 5e-4, "batch_size": 64},
    )

Every value is a setting of a run, which checks it, and a user can change it: `--recipe own --set lr=1e-4 --epochs 30`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Recipe:
    """Settings of a run by name. The protocol has those that it does not state.

    Args:
        by_dataset: What differs on single datasets, by their names.
        stated: Settings of a run that are the protocol's by default, parts of the augmentation, and hyperparameters.
    """

    def __init__(self, *, by_dataset: Mapping[str, Recipe] | None = None, **stated: Any) -> None:
        self.by_dataset, self.stated = by_dataset or {}, stated

    def __str__(self) -> str:
        """Return the stated settings in one line.

        >>> print(Recipe(epochs=100, augmentation={"crop": 0.8, "grayscale": 0}, hyperparameters={"lr": 0.001}))
        epochs 100, augmentation (crop 0.8, grayscale 0), lr 0.001
        >>> print(Recipe(by_dataset={"PACS": Recipe(hyperparameters={"penalty": 0.01})}))
        on PACS: penalty 0.01
        """
        stated = dict(self.stated)
        if "augmentation" in stated:  # in parentheses, because a hyperparameter may have the name of a part
            stated["augmentation"] = f"({_listed(stated['augmentation'])})"
        stated |= stated.pop("hyperparameters", {})
        parts = [_listed(stated)]
        parts += [f"on {name}: {recipe}" for name, recipe in self.by_dataset.items()]
        return "; ".join(filter(None, parts))

    def settings(self, dataset: str) -> dict[str, Any]:
        """Return the settings that the recipe states for a dataset.

        >>> recipe = Recipe(epochs=150, hyperparameters={"lr": 1e-4}, by_dataset={"DomainNet": Recipe(epochs=50)})
        >>> recipe.settings("DomainNet")
        {'hyperparameters': {'lr': 0.0001}, 'epochs': 50}
        """
        if dataset not in self.by_dataset:
            return dict(self.stated)
        stated, own = dict(self.stated), self.by_dataset[dataset].settings(dataset)
        for name in ("augmentation", "hyperparameters"):
            if name in stated and name in own:
                own[name] = {**stated[name], **own[name]}
        if "steps" in own or "epochs" in own:  # one length replaces the other
            stated.pop("steps", None)
            stated.pop("epochs", None)
        return {**stated, **own}


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
