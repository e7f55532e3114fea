from __future__ import annotations

import dataclasses
import json

import pytest

from helpers.special_files import SPECIAL, at_most, replace_by
from swad.testbed.sweep.spec import FIELDS, SweepSpec
from swad.testbed.sweep.spec_file import read_spec_file

PLAN = """
algorithm = ["erm", "coral"]
averages = "swad"
dataset = ["PACS"]
trial = [0, 1]
protocol = "grid"
data = "data"

[grid]
lr = [1e-5, 3e-5]

[options]
steps = 200
network = "resnet18"
hyperparameters = { batch_size = 16 }
"""


@pytest.mark.parametrize("line", ['target = ["../../x"]', 'target = "/x"', 'domains = { folder = ["a", "../x"] }'])
def test_a_plan_names_no_folder_outside_of_the_sweep(tmp_path, line):
    path = tmp_path / "plan.toml"
    path.write_text(line)
    values, (problem,) = read_spec_file(path)
    assert values == {}
    assert problem.startswith(f"{path}: a name in {line.split()[0]} must be a name without control characters, and not")


@pytest.mark.parametrize("kind", [*SPECIAL, "deep"])
def test_a_plan_that_cannot_be_read_to_its_end_is_one_problem(tmp_path, kind):
    path = tmp_path / "plan.toml"
    if kind == "deep":
        path.write_text("lr = " + "[" * 100_000)
    else:
        replace_by(kind, path)
    with at_most(5):
        values, (problem,) = read_spec_file(path)
    assert values == {}
    assert str(path) in problem
    assert "\n" not in problem


def test_a_plan_file_is_a_spec(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    values, problems = read_spec_file(path)
    assert problems == []
    spec = SweepSpec(**values)
    assert spec.algorithms == ("erm", "coral")
    assert spec.averages == ("swad",)
    assert spec.grid == {"lr": (1e-5, 3e-5)}
    assert spec.options == {"steps": 200, "network": "resnet18", "hyperparameters": {"batch_size": 16}}
    assert spec.data == tmp_path / "data"  # relative to the file, wherever the command is started


def test_all_mistakes_of_a_file_are_listed_with_its_name(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('algoritms = ["erm"]\nsteps = 5\ntrial = "3"\ndraws = 2.5\nfoo = 1\ngrid = [1]\nseeding = 2020\n')
    values, problems = read_spec_file(path)
    assert values == {}
    assert all(problem.startswith(f"{path}: ") for problem in problems)
    texts = [problem.removeprefix(f"{path}: ") for problem in problems]
    assert texts[0] == "there is no key 'algoritms': did you mean 'algorithm'?"
    assert texts[1] == "there is no key 'steps': a setting of the runs belongs under [options]"
    assert texts[2] == "trial must be a list of whole numbers, got '3'"
    assert texts[3] == "draws must be a whole number, got 2.5"
    assert "there are algorithm, averages, dataset, data, target, trial" in texts[4]
    assert texts[5] == "grid must be a table of values by name, got [1]"
    assert texts[6] == "seeding must be a text, got 2020"
    assert len(texts) == 7


@pytest.mark.parametrize(("grid", "rule"), [("1", "lists of values"), ("[[1, 2]]", "lists of numbers")])
def test_a_grid_has_a_list_for_each_name(tmp_path, grid, rule):
    path = tmp_path / "plan.toml"
    path.write_text(f"grid = {{ lr = {grid} }}\n")
    values, (problem,) = read_spec_file(path)
    assert not values
    assert problem.startswith(f"{path}: grid must be {rule} by name, got ")


def test_several_names_in_one_text_are_to_be_a_list(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        'algorithm = "erm,coral"\ndataset = "PACS, VLCS"\naverages = "swad:n_converge=2,n_tolerance=3,ema"\n'
        'target = "Bonn, north"\n'
    )
    values, problems = read_spec_file(path)
    assert values == {"targets": "Bonn, north"}  # a domain may be called so
    assert problems == [
        f'{path}: algorithm must be a list of names, got \'erm,coral\': write algorithm = ["erm", "coral"]',
        f'{path}: dataset must be a list of names, got \'PACS, VLCS\': write dataset = ["PACS", "VLCS"]',
        f"{path}: averages must be a list of names, got 'swad:n_converge=2,n_tolerance=3,ema': "
        'write averages = ["swad:n_converge=2,n_tolerance=3", "ema"]',
    ]
    path.write_text('averages = "swad:n_converge=2,n_tolerance=3"\n')
    assert read_spec_file(path) == ({"averages": "swad:n_converge=2,n_tolerance=3"}, [])


def test_a_file_that_cannot_be_read_is_one_problem(tmp_path):
    assert "cannot read the plan" in read_spec_file(tmp_path / "no.toml")[1][0]
    broken = tmp_path / "broken.toml"
    broken.write_bytes(b"algorithm = [\xff")
    assert "is not valid TOML" in read_spec_file(broken)[1][0]
    broken.write_text("algorithm = [")
    assert "is not valid TOML" in read_spec_file(broken)[1][0]


@pytest.mark.parametrize(
    "spec",
    [
        SweepSpec(),
        SweepSpec(protocol="domainbed", seeding="2020", draws=7, select="lodo"),
        SweepSpec(protocol="grid", grid={"lr": (1e-5, 1)}, options={"snapshots": (3, 4), "steps": 5}, data="/data"),
        SweepSpec(datasets=("folder",), data="/data", domains={"folder": ("a", "b")}, targets=("a",)),
    ],
)
def test_json_round_trip(spec):
    content = json.loads(json.dumps(spec.to_json()))
    again = SweepSpec.from_json(content, "sweep.json")
    assert set(content) == set(FIELDS)
    assert json.loads(json.dumps(again.to_json())) == content
    assert dataclasses.replace(again, options=spec.options) == spec
