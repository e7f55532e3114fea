"""Metrics of classification: which there are, what records they are read from, and how domains are combined.

    accuracy            fraction of images that are classified correctly; always recorded
    balanced_accuracy   mean over classes of the accuracy on their images
    auc                 mean over classes of the area under the ROC curve, each class against all others
    f1                  mean over classes of F1
    worst_domain        lowest accuracy on a source domain
    worst_group         lowest accuracy on the images of one class in one domain
    accuracy:CLASS      accuracy on the images of a class, its sensitivity

`swad train --metrics` takes all but the last, and `class_accuracy`, which is that of every class. A metric is not
recorded where it is not defined, such as the AUC on images of one class. All are fractions; tables print percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from swad.util.names import choice_problem
from swad.util.statistics import mean

CLASS_ACCURACY = "class_accuracy"
OF_CLASS = "accuracy:"


class Metric(NamedTuple):
    """A metric by which runs are selected, or which tables show."""

    label: str
    """Its name in texts."""
    recorded: str
    """The records that it is read from, one for each domain and split."""
    over_domains: Callable[[Iterable[float]], float] = mean
    """Combines the values of the source domains."""

    @property
    def title(self) -> str:
        """Its name at the beginning of a sentence."""
        return self.label[0].upper() + self.label[1:]


METRICS = {
    "accuracy": Metric("accuracy", "accuracy"),
    "balanced_accuracy": Metric("balanced accuracy", "balanced_accuracy"),
    "auc": Metric("AUC", "auc"),
    "f1": Metric("macro F1", "f1"),
    "worst_domain": Metric("accuracy in the worst domain", "accuracy", min),
    "worst_group": Metric("accuracy in the worst group", "worst_group", min),
}


def metric_problem(option: str, name: object) -> str:
    """Say that there is no such metric to select by or to show; "" if there is one."""
    if isinstance(name, str) and (name in METRICS or (name.startswith(OF_CLASS) and name != OF_CLASS)):
        return ""
    return choice_problem(option, str(name), (*METRICS, f"{OF_CLASS}CLASS"))


def get_metric(name: str) -> Metric:
    """Return a metric by its name.

    >>> get_metric("accuracy:melanoma").label
    'accuracy on melanoma'
    """
    if problem := metric_problem("the metric", name):
        raise ValueError(problem)
    if name.startswith(OF_CLASS):
        return Metric(f"accuracy on {name.removeprefix(OF_CLASS)}", name)
    return METRICS[name]


def recorded_metrics(metrics: Iterable[str], select_by: str) -> tuple[str, ...]:
    """Return what an evaluation has to compute beside loss and accuracy.

    >>> recorded_metrics(["auc", "worst_domain", "class_accuracy"], "accuracy:melanoma")
    ('auc', 'class_accuracy', 'accuracy:melanoma')
    """
    recorded = [name if name == CLASS_ACCURACY else get_metric(name).recorded for name in metrics]
    return tuple(name for name in dict.fromkeys([*recorded, get_metric(select_by).recorded]) if name != "accuracy")
