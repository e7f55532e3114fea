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

Every value is also a setting of a run, so a user can change it: `--recipe own --set lr=1e-4 --epochs 30`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Recipe:
    """Settings of a run by name. A setting that is None, or not in a mapping, is the protocol's.

    Args:
        optimizer: adam or sgd.
        momentum: Momentum of SGD.
        lr_schedule: Learning rate schedule, as `--lr-schedule` takes it.
        epochs: Passes over the source training images.
        steps: Optimizer steps, if the paper counts those.
        clip: Largest norm of the gradients.
        freeze_bn: Whether the running statistics of batch norms are frozen.
        augmentation: Some of crop, flip, jitter and grayscale.
        batches: balanced: batch_size images of every source domain. pooled: batch_size images of all of them.
        hyperparameters: Hyperparameters of the algorithm: lr, batch_size, weight_decay, dropout and its own.
        by_dataset: What differs on single datasets, by their names.
    """

    optimizer: Literal["adam", "sgd"] | None = None
    momentum: float | None = None
    lr_schedule: str | None = None
    epochs: float | None = None
    steps: int | None = None
    clip: float | None = None
    freeze_bn: bool | None = None
    augmentation: Mapping[str, float] = field(default_factory=dict)
    batches: Literal["balanced", "pooled"] | None = None
    hyperparameters: Mapping[str, float | str] = field(default_factory=dict)
    by_dataset: Mapping[str, Recipe] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the stated settings in one line.

        >>> print(Recipe(epochs=100, augmentation={"crop": 0.8, "grayscale": 0}, hyperparameters={"lr": 0.001}))
        epochs 100, augmentation (crop 0.8, grayscale 0), lr 0.001
        >>> print(Recipe(by_dataset={"PACS": Recipe(hyperparameters={"penalty": 0.01})}))
        on PACS: penalty 0.01
        """
        stated = self.settings("")
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
        stated = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "by_dataset"}
        stated = {name: value for name, value in stated.items() if value is not None and value != {}}
        if dataset not in self.by_dataset:
            return stated
        own = self.by_dataset[dataset].settings(dataset)
        for name in ("augmentation", "hyperparameters"):
            if name in stated and name in own:
                own[name] = {**stated[name], **own[name]}
        if "steps" in own or "epochs" in own:  # one length replaces the other
            stated.pop("steps", None)
            stated.pop("epochs", None)
        return {**stated, **own}


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
