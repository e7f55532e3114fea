"""Averages of users: the one of the docs, one from scratch, a run with it, and mistakes in a file."""

from __future__ import annotations

import re

import pytest

from helpers.averages import OneHot, drive, reload, uniform, weights_of
from helpers.documents import example
from helpers.runs import interrupt_at, require_same, short
from swad.averaging.group import AverageGroup
from swad.testbed.averages import own, registry
from swad.testbed.averages.registry import AverageError, Plan
from swad.testbed.training.loop import RunInterrupted, train

EXAMPLE = example("reference/writing-a-method.md", "AVERAGE = LateValley")
LAWA = '''
import swad

class LAWA(swad.Rule):
    """The weights at the last k evaluations."""

    dense, settings = False, ("k",)

    def __init__(self, k=2, scale=1.5, keep=True, word="x", other=None):
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self.k, self.steps = k, []
        self.options = (scale, keep, word, other)

    def observe(self, loss, step):
        self.steps = [*self.steps, step][-self.k :]

    def spans(self, step):
        return tuple(swad.Span(step, step) for step in self.steps)

    def needed(self):
        return self.spans(0)

    def takes(self, step):  # only evaluations matter
        return False

AVERAGE = LAWA
'''
MERGE = '''
import swad

class AVERAGE(swad.Rule):
    """The weights at all evaluations, each weighed by how low its loss was."""

    dense = False

    def __init__(self):
        self.weights = []

    def observe(self, loss, step):
        self.weights = [*self.weights, (step, 1 / loss)]

    def spans(self, step):
        return tuple(swad.Span(step, step, weight) for step, weight in self.weights)

    def needed(self):
        return self.spans(0)

    def takes(self, step):
        return False
'''
PLAN = Plan(steps=100, evaluate_every=10, tolerance_ratio=0.2)
LOSSES = [1.0, 2.0, 2.0, 2.0, 0.5, 0.6, 0.6, 0.7, 0.7, 0.7]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "averages"
    folder.mkdir()
    monkeypatch.setattr(own, "__path__", [str(folder)])
    (folder / "own_late.py").write_text(EXAMPLE)
    (folder / "own_lawa.py").write_text(LAWA)
    (folder / "own_merge.py").write_text(MERGE)
    return folder


def build(text, model):
    return next(iter(registry.make([registry.parse(text)], model, PLAN).values()))


@pytest.mark.parametrize(("text", "updates"), [("own_late:skip=0.3", range(50, 101)), ("own_lawa:k=3", (80, 90, 100))])
def test_it_averages_what_it_says_alone_in_a_group_and_after_a_resume(text, updates):
    alone = build(text, OneHot(101))
    drive(alone, LOSSES)
    assert weights_of(alone) == uniform(updates)
    assert [step for span in alone.status.spans for step in span.updates] == list(updates)
    assert weights_of(reload(alone, build(text, OneHot(101)))) == uniform(updates)
    model = OneHot(101)
    group = AverageGroup(model, {name: build(name, model) for name in (text, "swad", "ema")})
    drive(group, LOSSES)
    assert weights_of(group[text]) == uniform(updates)
    assert weights_of(group["swad"]) == uniform(range(10, 101)), "which starts early, unlike that of the example"


def test_a_weighted_merge_alone_in_a_group_and_after_a_resume():
    alone = build("own_merge", OneHot(101))
    drive(alone, LOSSES)
    weights = {step: 1 / loss for step, loss in zip(range(10, 101, 10), LOSSES, strict=True)}
    want = {step: pytest.approx(weight / sum(weights.values()), rel=1e-5) for step, weight in weights.items()}
    assert weights_of(alone) == weights_of(reload(alone, build("own_merge", OneHot(101)))) == want
    model = OneHot(101)
    group = AverageGroup(model, {name: build(name, model) for name in ("own_merge", "swad", "own_lawa")})
    drive(group, LOSSES)
    assert weights_of(group["own_merge"]) == want


@pytest.mark.parametrize("text", [LAWA, MERGE])
def test_an_average_of_ones_own_is_one_short_file(text):
    statements = [line for line in text.splitlines() if line.strip() and '"""' not in line]
    assert len(statements) < 25


def test_options_have_the_types_of_their_defaults():
    average = build("own_lawa:k=4,scale=2,keep=false,word=seven,as=mine", OneHot(2))
    assert (average.rule.k, average.rule.options) == (4, (2.0, False, "seven", None))
    for text, message in {
        "own_lawa:k=two": "own_lawa: k must be a whole number, got 'two'",
        "own_lawa:k=0": "average own_lawa: k must be at least 1, got 0",
        "own_lawa:other=1": (
            "own_lawa takes k, scale, keep, word, buffers, offload, as, as name=value after the colon; got 'other=1'"
        ),
    }.items():
        with pytest.raises(AverageError) as raised:
            build(text, OneHot(2))
        assert str(raised.value) == message


def test_a_run_with_it_resumes_to_the_same_bits(tmp_path):
    averages = "own_late,own_lawa:k=2,as=latest,swad"
    whole = train(short(tmp_path / "whole", averages=averages))
    assert {"own_late", "latest", "swad"} <= whole.ranges.keys()
    with pytest.raises(RunInterrupted):
        train(short(tmp_path / "cut", averages=averages), callback=interrupt_at(6))
    train(short(tmp_path / "cut", averages=averages))
    require_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("own_missing", "", "a file of an average must define AVERAGE, but own_missing.py does not: add the line"),
        (
            "own_function",
            "def AVERAGE(): ...",
            "AVERAGE must be a subclass of swad.Rule, got <function AVERAGE.* in own_function.py$",
        ),
        ("own_broken", "\nimport no_such_package", r"own_broken.py, line 2: ModuleNotFoundError.*; correct the file"),
        (
            "own_needy",
            "import swad\nclass AVERAGE(swad.LossValley):\n  def __init__(self, rate): ...",
            "average own_needy: AVERAGE of own_needy.py raises TypeError: .* 'rate'",
        ),
        ("ema", "", "average names must be unique, but 'ema' exists already: rename ema.py"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(folder, name, code, message):
    (folder / f"{name}.py").write_text(code)
    problems = registry.problems([name], PLAN)
    assert len(problems) == 1
    assert re.search(message, problems[0])
    assert "\n" not in problems[0]


def test_unknown_names_suggest_yours(folder, monkeypatch):
    with pytest.raises(
        AverageError, match=r"^there is no average 'own_lat', only swad, .*: did you mean 'own_late'\?$"
    ):
        registry.parse("own_lat")
    with pytest.raises(
        AverageError, match=r"'nonsense', only swad, .*, own_lawa, own_merge: name .* in SWAD_AVERAGES$"
    ):
        registry.parse("nonsense")
    monkeypatch.setattr(own, "__path__", [str(folder / "nowhere")])
    with pytest.raises(AverageError, match=r"SWAD_AVERAGES must name existing folders, got .*nowhere"):
        registry.parse("own_late")
