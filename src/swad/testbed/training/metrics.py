"""Metrics beside loss and accuracy, computed by torchmetrics from the outputs for all images of a split."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from swad.testbed.results.metrics import CLASS_ACCURACY, OF_CLASS
from swad.util.packages import require_extra


class Outputs(NamedTuple):
    """What a model predicts for every image of a split, in the order of the split."""

    labels: Tensor
    predictions: Tensor
    """Those that count as correct or not: rounded probabilities may be equal where logits differ."""
    probabilities: Tensor
    """One column for each class."""


def compute(names: Sequence[str], outputs: Outputs, classes: Sequence[str]) -> dict[str, float]:
    """Return the values of metrics by name; one that is not defined on these images is left out.

    Args:
        names: The metrics, as `swad.testbed.results.metrics.recorded_metrics` returns them.
        outputs: The outputs for the images.
        classes: Names of the classes.
    """
    if not len(outputs.labels):
        return {}
    with require_extra("a metric beside accuracy", "metrics"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a class has no images; its value is left out
        values: dict[str, float] = {}
        for name in names:
            if name in _METRICS:
                by_class, combine = _METRICS[name]
                of_classes = by_class(outputs, len(classes))
                defined = of_classes[~of_classes.isnan()]
                if len(defined):
                    values[name] = float(combine(defined))
            else:
                of_classes = class_accuracy(outputs, len(classes))
                named = {f"{OF_CLASS}{label}": value for label, value in zip(classes, of_classes.tolist(), strict=True)}
                wanted = named if name == CLASS_ACCURACY else {name: named[name]}
                values |= {key: value for key, value in wanted.items() if value == value}
    return values


def class_accuracy(outputs: Outputs, n_classes: int) -> Tensor:
    """Return the accuracy on the images of every class; nan for a class without images."""
    from torchmetrics.functional.classification import multiclass_accuracy

    labels, predictions, _ = outputs
    values: Tensor = multiclass_accuracy(predictions, labels, n_classes, average="none")
    return values.where(torch.bincount(labels, minlength=n_classes) > 0, torch.nan)


def f1(outputs: Outputs, n_classes: int) -> Tensor:
    """Return F1 of every class; nan for a class that neither the labels nor the predictions have."""
    from torchmetrics.functional.classification import multiclass_f1_score

    labels, predictions, _ = outputs
    values: Tensor = multiclass_f1_score(predictions, labels, n_classes, average="none")
    return values.where(torch.bincount(torch.cat([labels, predictions]), minlength=n_classes) > 0, torch.nan)


def auc(outputs: Outputs, n_classes: int) -> Tensor:
    """Return the area under the ROC curve of every class against all others; nan where one side has no images."""
    from torchmetrics.functional.classification import multiclass_auroc

    labels, _, probabilities = outputs
    if not probabilities.isfinite().all():  # of a training that has diverged; any order of them would be a number
        return torch.full((n_classes,), torch.nan)
    values: Tensor = multiclass_auroc(probabilities, labels, n_classes, average="none")
    counts = torch.bincount(labels, minlength=n_classes)
    return values.where((counts > 0) & (counts < len(labels)), torch.nan)


_METRICS: dict[str, tuple[Callable[[Outputs, int], Tensor], Callable[[Tensor], Tensor]]] = {
    "balanced_accuracy": (class_accuracy, torch.mean),
    "worst_group": (class_accuracy, torch.min),
    "f1": (f1, torch.mean),
    "auc": (auc, torch.mean),
}
"""Values of all classes, and how they are combined."""
