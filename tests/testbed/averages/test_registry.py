from __future__ import annotations

import math

import pytest
from torch import nn

from swad.averaging.decay import Decay
from swad.averaging.latest import Decayed, Latest
from swad.averaging.valley import LossValley
from swad.averaging.window import Window
from swad.testbed.averages import registry
from swad.testbed.averages.registry import AverageError, Plan, Spec

PAPER = Plan(steps=5000, evaluate_every=100)


def build(text: str, plan: Plan = PAPER):
    return next(iter(registry.make([registry.parse(text)], nn.Linear(1, 1), plan).values()))


def test_every_name_makes_an_average():
    made = registry.make(registry.parse_all(registry.names()), nn.Linear(1, 1), PAPER)
    assert tuple(made) == registry.names()
    rules = {name: type(average.rule) for name, average in made.items()}
    assert rules["swad"] is rules["without_dense"] is rules["without_overfit"] is LossValley
    assert rules["swa"] is rules["without_opt_overfit"] is rules["sma"] is Window
    assert rules["ema"] is Decay
    assert (rules["lawa"], rules["wsm"]) == (Latest, Decayed)


def test_windows_of_the_paper():
    swa = build("swa").rule
    assert (swa.start, swa.end, swa.interval) == (4000, 5000, 100)
    dense = build("without_opt_overfit").rule
    assert (dense.start, dense.end, dense.interval) == (4000, 5000, 1)
    assert build("without_dense").rule.interval == 100
    assert build("without_overfit").rule.n_tolerance == math.inf
    assert build("sma").rule.start == 100
    assert build("ema").rule.decay == 0.99
    assert build("swad_text").rule.semantics == "text"
    assert build("swad_reference").rule.semantics == "reference"


def test_windows_of_other_schedules():
    late = build("swa", Plan(5000, 100, offset=1)).rule
    assert (late.start, late.end) == (4001, 5001)  # evaluated after 4101, ..., 5001
    cyclic = build("swa", Plan(5000, 50, cycle=100)).rule
    assert cyclic.interval == 100
    for steps, every in ((1, 1), (10, 4), (10, 10), (24, 4), (400, 10), (7, 3)):
        short = build("swa", Plan(steps, every)).rule
        assert short.start >= 0
        assert short.start + short.interval <= short.end == steps
        assert short.end % short.interval == short.start % short.interval


def test_sma_begins_at_update_100_whatever_the_length_of_training():
    assert build("sma", Plan(15_000, 500)).rule.start == 100
    assert build("sma:start=7", Plan(40, 10)).rule.start == 7
    with pytest.raises(AverageError, match=r"start earlier with sma:start=2$"):
        build("sma", Plan(100, 10))
    assert build("sma", Plan(100, 10, offset=1)).rule.start == 100


def test_the_tolerance_is_the_datasets_unless_given():
    vlcs = Plan(5000, 50, tolerance_ratio=0.2)
    assert build("swad", vlcs).rule.tolerance_ratio == 0.2
    assert build("without_dense", vlcs).rule.tolerance_ratio == 0.2
    assert build("swad:tolerance_ratio=0.4", vlcs).rule.tolerance_ratio == 0.4


def test_lists_with_options():
    text = "swad:semantics=reference,tolerance_ratio=0.2, ema:decay=0.9,swa"
    assert registry.split(text) == ("swad:semantics=reference,tolerance_ratio=0.2", "ema:decay=0.9", "swa")
    assert registry.split("") == ()
    assert registry.parse("swad:semantics=text,as=other,offload=true,n_tolerance=inf") == Spec(
        "swad", "other", {"semantics": "text", "offload": True, "n_tolerance": math.inf}
    )
    assert type(build("swad:n_tolerance=6").rule.n_tolerance) is int


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("swat", "there is no average 'swat', only swad, swad_text"),
        ("ema:decay=fast", "decay must be a number, got 'fast'"),
        ("ema:decay=nan", "decay must be a number"),
        ("swa:start=1.5", "start must be a whole number"),
        ("swad:offload=maybe", "offload must be true or false"),
        ("wsm:decay=up", "decay must be one of 1-sqrt, linear, cosine, got 'up'"),
        ("ema:speed=3", "ema takes decay, warmup, buffers, offload, as"),
        ("ema:offload=true", "a mean that moves at every update has none: leave offload out"),
        (
            "swad_text:semantics=paper",
            "takes n_converge, n_tolerance, tolerance_ratio, tolerance, start, restart",
        ),
        ("swad:0.3", "got '0.3'"),
        ("swad:as=best", "must not be best or last"),
        ("swad:as=../up", "got '../up'"),
        ("swad:tolerance_ratio=-1", "average swad: r = 1"),
        ("swa:start=9000", "average swa: a window needs"),
        ("swa:start=4950", "average swa: a window needs"),
        ("swa:start=6000,end=7000", "starts after update 6000, but this run ends at update 5000"),
        ("ema:decay=1", "average ema: decay must be"),
        (
            "sma:start=5000",
            "starts after update 5000, but this run ends at update 5000: train longer, or start earlier",
        ),
    ],
)
def test_errors_are_one_line(text, words):
    found = registry.problems([text], PAPER)
    assert len(found) == 1
    assert words in found[0]
    assert "\n" not in found[0]


def test_names_must_differ():
    with pytest.raises(AverageError, match="two averages are called swad: give one another name with as=NAME"):
        registry.parse_all(["swad", "swad:tolerance_ratio=0.1"])
    specs = registry.parse_all(["swad", "swad:tolerance_ratio=0.1,as=strict"])
    assert list(registry.make(specs, nn.Linear(1, 1), PAPER)) == ["swad", "strict"]
    assert len(registry.problems(["swad", "swad"], PAPER)) == 1
