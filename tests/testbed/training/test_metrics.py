"""Metrics equal those of scikit-learn, an independent twin, also where torchmetrics counts what is not defined as 0."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.runs import short
from swad.testbed.results.predictions import read_predictions
from swad.testbed.results.records import read_records
from swad.testbed.training import loop
from swad.testbed.training.loop import ConfigError, RunError, train
from swad.testbed.training.metrics import Outputs, compute

twin = pytest.importorskip("sklearn.metrics")
pytest.importorskip("torchmetrics")

NAMES = ("auc", "f1", "balanced_accuracy", "worst_group", "class_accuracy")


def random_outputs(n: int, n_classes: int, labels: list[int] | None = None, seed: int = 0) -> Outputs:
    rng = np.random.default_rng(seed)
    of_images = rng.choice(labels or range(n_classes), n)
    logits = rng.normal(size=(n, n_classes)) + 1.5 * np.eye(n_classes)[of_images]
    probabilities = torch.tensor(logits, dtype=torch.float32).softmax(1)
    return Outputs(torch.tensor(of_images), probabilities.argmax(1), probabilities)


def with_scikit_learn(outputs: Outputs, classes: list[str]) -> dict[str, float]:
    labels, predictions, probabilities = (tensor.numpy() for tensor in outputs)
    present = [code for code in range(len(classes)) if 0 < (labels == code).sum() < len(labels)]
    recalls = {code: (predictions[labels == code] == code).mean() for code in np.unique(labels)}
    return {
        "auc": np.mean([twin.roc_auc_score(labels == code, probabilities[:, code]) for code in present]),
        "f1": twin.f1_score(labels, predictions, average="macro"),
        "balanced_accuracy": twin.balanced_accuracy_score(labels, predictions),
        "worst_group": min(recalls.values()),
        **{f"accuracy:{classes[code]}": recall for code, recall in recalls.items()},
    }


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize(
    ("n", "n_classes", "labels"), [(200, 7, None), (60, 2, None), (50, 5, [0, 2, 3]), (9, 9, None)]
)
def test_metrics_equal_those_of_scikit_learn(n, n_classes, labels):
    """With images of three of five classes, the two others count for nothing unless they are predicted."""
    outputs, classes = random_outputs(n, n_classes, labels), [f"class {code}" for code in range(n_classes)]
    values = compute(NAMES, outputs, classes)
    assert values == pytest.approx(with_scikit_learn(outputs, classes), abs=1e-6)


def test_a_metric_that_is_not_defined_is_left_out():
    one_class = random_outputs(20, 3, [1])
    assert set(compute(NAMES, one_class, "abc")) == {"f1", "balanced_accuracy", "worst_group", "accuracy:b"}
    diverged = one_class._replace(probabilities=one_class.probabilities * torch.nan)
    assert "auc" not in compute(NAMES, diverged, "abc")
    assert compute(NAMES, Outputs(*(tensor[:0] for tensor in one_class)), "abc") == {}


@pytest.fixture(scope="module")
def with_metrics(tmp_path_factory, request):
    """A run that records every metric and is selected by AUC."""
    from helpers import few_digits
    from swad.testbed.data.benchmarks import digits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "render", few_digits.render)
        config = short(tmp_path_factory.mktemp("metrics") / "run", metrics=NAMES[1:], select_by="auc")
        return train(config).run_dir


def recorded(run_dir, average=None):
    return [record for record in read_records(run_dir) if record.domain is not None and record.average == average]


def test_recording_metrics_changes_nothing_else(with_metrics, finished_run):
    """The evaluations, and the weights that no metric selects, are the same to the bit."""
    for average in (None, "last", "swad", "ema"):
        before = [record for record in recorded(finished_run, average) if record.domain is not None]
        now = [record for record in recorded(with_metrics, average) if record.metric in ("loss", "accuracy")]
        assert [(r.step, r.domain, r.split, r.metric, r.value) for r in now] == [
            (r.step, r.domain, r.split, r.metric, r.value) for r in before
        ]
    assert {record.metric for record in recorded(finished_run)} == {"loss", "accuracy"}


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_recorded_metrics_are_those_of_the_predictions(with_metrics):
    predictions = read_predictions(with_metrics)
    classes = [str(digit) for digit in range(10)]
    for (weights, domain, split), rows in predictions.groupby(["weights", "domain", "split"], observed=True):
        outputs = Outputs(
            torch.tensor(rows.label.cat.codes.to_numpy(np.int64)),
            torch.tensor(rows.prediction.cat.codes.to_numpy(np.int64)),
            torch.tensor(rows[[f"p({digit})" for digit in classes]].to_numpy()),
        )
        values = {
            record.metric: record.value
            for record in recorded(with_metrics, weights)
            if (record.domain, record.split) == (domain, split) and record.metric not in ("loss", "accuracy")
        }
        assert values == pytest.approx(with_scikit_learn(outputs, classes), abs=1e-6)


def test_the_best_weights_are_those_of_the_step_with_the_highest_metric(with_metrics):
    by_step: dict[int, list[float]] = {}
    for record in recorded(with_metrics):
        if record.metric == "auc":
            by_step.setdefault(record.step, []).append(record.value)
    best = max(by_step, key=lambda step: (np.mean(by_step[step]), -step))
    card = (with_metrics / "weights" / "best.md").read_text()
    assert f"The weights of step {best}, with the highest AUC on source validation." in card
    assert all(len(values) == 3 for values in by_step.values())


def test_a_run_is_selected_by_its_worst_group(tmp_path):
    result = train(short(tmp_path / "run", select_by="worst_group", target_every_evaluation=True))
    worst = {}
    for record in recorded(result.run_dir):
        if record.metric == "worst_group" and record.domain != "paper":
            worst[record.step] = min(record.value, worst.get(record.step, 1.0))
    best = max(worst, key=lambda step: (worst[step], -step))
    assert (
        f"step {best}, with the highest accuracy in the worst group"
        in (result.run_dir / "weights" / "best.md").read_text()
    )
    assert any(record.domain == "paper" for record in recorded(result.run_dir) if record.metric == "worst_group")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"metrics": ["acu"]}, "a metric must be one of .*, got 'acu': did you mean 'auc'?"),
        ({"select_by": "roc"}, "select_by must be one of accuracy, .*, got 'roc'"),
        ({"select_by": "accuracy:12"}, "select_by must be one of accuracy:0, .*, got 'accuracy:12'"),
    ],
)
def test_an_unknown_metric_is_refused_before_training(options, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem):
        train(short(tmp_path / "run", **options))


def test_a_missing_package_is_named_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    problems = short(tmp_path / "run", metrics=("auc",)).problems()
    assert problems == ["auc needs torchmetrics: pip install 'swad[metrics]'"]


def test_a_metric_without_a_value_cannot_select(tmp_path, monkeypatch):
    values = {"board": {"out": {"loss": 1.0, "accuracy": 0.5}}}
    monkeypatch.setattr("swad.testbed.training.evaluation.Evaluator.values", lambda *_: values)
    with pytest.raises(RunError, match="select_by must be defined on the validation images, got auc, which none"):
        loop.train(short(tmp_path / "run", select_by="auc"))
