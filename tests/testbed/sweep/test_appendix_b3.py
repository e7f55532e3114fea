"""The searches of appendix B.3, as plans."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.averages import registry as averages
from swad.testbed.sweep import appendix_b3, checks
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.search import grid_points

CHOSEN = {
    "pi_model": {"weight": 1},
    "sam": {"rho": 0.05},
    "mixstyle": {"alpha": 0.1, "p": 0.5},
    "vat": {"eps": 1.0, "alpha": 1.0},
    "mixup": {"alpha": 0.2},
    "cutmix": {"alpha": 1.0, "p": 0.5},
}
"""What the paper chose."""


def test_the_plan_searches_what_the_paper_names_and_its_choice_is_our_default():
    assert appendix_b3.SEARCHES["pi_model"] == {"weight": (1, 10, 100, 300)}
    for name, chosen in CHOSEN.items():
        assert chosen in grid_points(appendix_b3.SEARCHES[name])
        defaults = get_algorithm(name).Hyperparameters()
        assert {key: getattr(defaults, key) for key in chosen} == chosen


def test_the_plan_is_valid_and_counts_its_runs(tmp_path):
    specs = appendix_b3.specs({"data": tmp_path})
    assert [problem for spec in specs for problem in checks.find_problems(spec)] == []
    plan = SweepDir(tmp_path / "sweep").plan(specs)
    # 19 values on four targets, and four trainings of ERM for all decays.
    assert len(plan.runs) == plan.total == 4 * 19 + 4
    assert {run.config.trial for run in plan.runs} == {0}
    assert {run.config.dataset for run in plan.runs} == {"PACS"}
    erm = [run for run in plan.runs if run.config.algorithm == "erm"]
    labels = [spec.label for spec in averages.parse_all(erm[0].config.averages)]
    assert labels == ["swad", "ema_0.9", "ema_0.99", "ema_0.999"]


def test_stated_fields_replace_those_of_the_plan():
    (spec,) = appendix_b3.specs({"algorithms": ("SAM",), "datasets": ("digits",), "options": {"steps": 20}})
    assert (spec.algorithms, spec.datasets, spec.options) == (("sam",), ("digits",), {"steps": 20})
    assert dataclasses.asdict(spec)["grid"] == {"rho": (0.01, 0.02, 0.05, 0.1)}


def test_contradictions_are_listed_together():
    problems = appendix_b3.find_problems({"grid": {"lr": (1,)}, "draws": 5, "algorithms": ("coral", "sma", "sam")})
    assert len(problems) == 4
    assert "has no search for coral" in problems[2]
    assert "sma" in problems[3]


def test_a_file_of_that_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert appendix_b3.is_plan(Path(appendix_b3.NAME))
    Path(appendix_b3.NAME).touch()
    assert not appendix_b3.is_plan(Path(appendix_b3.NAME))
    assert not appendix_b3.is_plan(None)


@pytest.mark.slow
def test_the_plan_trains_from_the_command_line(here, tmp_path):
    options = ("--dataset", "digits", "-t", "paper", "--algorithm", "mixup,erm", "--steps", "4", "-o", tmp_path)
    out = here("sweep", "run", appendix_b3.NAME, *options).stdout
    assert "EMA 0.999" in out
    assert "Appendix B.3" in out
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("Mixup: alpha", "EMA: decay"))]
    assert [row[:3] for row in rows] == [
        *(["Mixup:", "alpha", value] for value in ("0.1", "0.2", "0.4")),
        *(["EMA:", "decay", value] for value in ("0.9", "0.99", "0.999")),
    ]
    assert [row[2] for row in rows if row[-1] == "paper"] == ["0.2", "0.99"]
    for method in ("Mixup:", "EMA:"):
        values = {row[2]: float(row[3]) for row in rows if row[0] == method}
        assert [row[2] for row in rows if row[0] == method and "here" in " ".join(row)] == [max(values, key=values.get)]
    assert len(list(tmp_path.rglob("done.json"))) == 4
    error = here(
        "sweep", "run", appendix_b3.NAME, "--grid", "lr=1,2", "--algorithm", "coral", "-o", tmp_path, code=1
    ).stderr
    assert "grid is part of the plan" in error
    assert "no search for coral" in error
