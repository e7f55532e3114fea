from __future__ import annotations

import pytest

from swad.testbed.models.networks import NetworkError
from swad.testbed.sweep.checks import data_problems, find_problems, missing_data, require_valid
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.config import ConfigError


def test_valid_specs_have_no_problems():
    for spec in (
        SweepSpec(),
        SweepSpec(protocol="paper", algorithms=("ERM", "dann")),
        SweepSpec(protocol="domainbed", algorithms=("ERM", "CORAL"), seeding="2020"),
        SweepSpec(protocol="random", draws=3),
        SweepSpec(protocol="grid", grid={"lr": (1e-3,)}, choose_by="swad"),
        SweepSpec(datasets=("PACS", "DomainNet"), targets=("sketch",)),
        SweepSpec(options={"report_live": False}),
    ):
        assert find_problems(spec) == [], spec


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithms": ("corral",)}, "no algorithm 'corral': did you mean 'coral'?"),
        ({"averages": ("swadd",)}, "did you mean 'swad'?"),
        ({"averages": ("swad", "swad:n_converge=2")}, "two averages are called swad"),
        ({"datasets": ("PAC",)}, "did you mean 'pacs'?"),
        ({"targets": ("papr",)}, "no domain 'papr': did you mean 'paper'?"),
        ({"targets": "paper, board"}, 'no domain \'paper, board\': for several write target = ["paper", "board"]'),
        ({"datasets": ("PACS", "VLCS"), "targets": ("sketch",)}, "dataset VLCS has none of the targets sketch"),
        ({"trials": ()}, "trials must not be empty"),
        (
            {"protocol": "grid", "grid": {name: tuple(range(1, 1001)) for name in ("lr", "dropout", "weight_decay")}},
            "a sweep must have at most 1,000,000 runs, got at least 3,000,000,000: search fewer points",
        ),
        ({"protocol": "random", "draws": 10**9}, "at most 1,000,000 runs, got at least 3,000,000,000"),
        ({"protocol": "domainbed", "draws": 10**12}, "at most 1,000,000 runs, got at least"),
        ({"trials": (-1,)}, "trial must be a whole number of at least 0, got -1"),
        ({"trials": (10**30,)}, f"trial must be below {2**63}, got {10**30}"),
        ({"protocol": "papr"}, "must be one of defaults, grid, random, paper, domainbed, got 'papr'"),
        ({"select": "idd"}, "did you mean 'iid'?"),
        ({"seeding": "2021", "protocol": "random"}, "seeding must be one of 2020, present"),
        ({"seeding": "2020"}, "seeding is for the protocols domainbed and random, got 2020 with defaults"),
        ({"draws": 5}, "draws is for the protocols domainbed and random"),
        ({"draws": 0, "protocol": "random"}, "draws must be 1 or more, got 0"),
        ({"grid": {"lr": (1,)}}, "a grid is for the protocols grid and paper, got lr with defaults"),
        ({"protocol": "grid"}, "the protocol grid needs values"),
        ({"protocol": "grid", "grid": {"lr": ()}}, "got none for lr"),
        ({"protocol": "grid", "grid": {"lrr": (1,)}}, "did you mean 'lr'?"),
        ({"protocol": "grid", "grid": {"lr": (-1,)}}, "lr must be a number above 0, got -1"),
        ({"protocol": "grid", "grid": {"batch_size": (1.5,)}}, "batch_size must be a whole number of at least 1"),
        ({"select": "oracle_best_step"}, "set target_every_evaluation"),
        ({"choose_by": "bset", "protocol": "paper"}, "did you mean 'best'?"),
        ({"protocol": "paper", "options": {"report_live": False}}, "choose_by best needs the live weights"),
        ({"options": {"stepz": 3}}, "there is no setting 'stepz': did you mean 'steps'?"),
        ({"options": {"trial": 3}}, "trial cannot be an option of all runs: state the trials of the sweep"),
        ({"options": {"steps": 0}}, "steps must be a whole number of at least 1, got 0"),
        ({"options": {"steps": 5, "evaluate_every": 9}}, "evaluate_every must not exceed the 5 steps"),
        ({"options": {"split": "50/50"}}, "split must be one of 80/20, 60/20/20"),
        ({"options": {"hyperparameters": {"lr": 1}}, "protocol": "random"}, "random draws all hyperparameters"),
        (
            {"options": {"hyperparameters": {"lr": 1}}, "protocol": "grid", "grid": {"lr": (1, 2)}},
            "lr cannot be both fixed and searched",
        ),
        (
            {"algorithms": ("coral",), "protocol": "grid", "grid": {"batch_size": (1, 8)}},
            "coral needs a batch_size of 2 or more, got 1",
        ),
        ({"options": {"hyperparameters": 5}}, "hyperparameters must be a dictionary, got 5"),
        ({"options": {"strategy": "fsdp"}}, "there is no setting 'strategy': leave it out, as the processes of a run"),
        ({"options": {"set": {"lr": 0.1}}}, "there is no setting 'set': write hyperparameters = { lr = 3e-5 }"),
        ({"options": {"allow_count_mismatch": True}}, "write check_counts = false"),
        (
            {"datasets": ("ColoredMNIST",), "algorithms": ("coral",), "select": "lodo"},
            "two domains held out, which leaves too few",
        ),
    ],
)
def test_every_mistake_is_one_sentence_that_says_what_to_do(changes, words):
    problems = find_problems(SweepSpec(**changes))
    assert len(problems) == 1, problems
    assert words in problems[0]
    assert "\n" not in problems[0]


def test_a_misspelled_network_is_reported_before_it_fails_every_run(monkeypatch):
    def input_config(name):  # the real one imports timm
        raise NetworkError(f"timm has no network {name!r}")

    monkeypatch.setattr("swad.testbed.training.checks.input_config", input_config)
    assert find_problems(SweepSpec(options={"network": "resnt50"})) == ["timm has no network 'resnt50'"]
    assert len(find_problems(SweepSpec(draws=5, options={"network": "resnt50"}))) == 2
    for valid in ("small", "hf-hub:timm/resnet18.a1_in1k"):
        assert find_problems(SweepSpec(options={"network": valid})) == []


def test_all_problems_are_listed_at_once():
    spec = SweepSpec(
        algorithms=("corral", "emr"),
        averages=("swadd",),
        datasets=("digitz", "PACS"),
        select="idd",
        draws=3,
        options={"stepz": 1},
    )
    assert len(find_problems(spec)) == 7
    with pytest.raises(ConfigError) as error:
        require_valid(spec)
    assert len(error.value.problems) == 8, "and PACS needs its directory"


def test_a_misspelled_name_hides_no_problem_of_the_other_runs():
    spec = SweepSpec(
        algorithms=("erm", "corral"), datasets=("digits",), options={"steps": 0, "hyperparameters": {"lrr": 1}}
    )
    problems = find_problems(spec)
    assert len(problems) == 3, problems
    assert [problem for problem in problems if "did you mean 'coral'?" in problem]
    assert [problem for problem in problems if problem.startswith("steps must be")]
    assert [problem for problem in problems if problem.startswith("erm has no hyperparameter lrr")]


def test_targets_of_a_misspelled_dataset_are_not_called_unknown():
    (problem,) = find_problems(SweepSpec(datasets=("digits", "PAC"), targets=("paper", "sketch")))
    assert "did you mean 'pacs'?" in problem
    (problem,) = find_problems(SweepSpec(datasets=("PAC",), options={"image_size": 224}))  # nothing about digits
    assert "did you mean 'pacs'?" in problem


def test_a_setting_among_the_hyperparameters_is_reported_once_with_its_option():
    spec = SweepSpec(algorithms=("erm", "coral"), options={"hyperparameters": {"evaluate_every": 3}})
    assert find_problems(spec) == [
        "evaluate_every is a setting of the run, not a hyperparameter: set it as one (--evaluate-every)"
    ]


def test_a_misspelled_hyperparameter_is_reported_once_for_each_algorithm():
    spec = SweepSpec(algorithms=("erm", "coral"), options={"hyperparameters": {"lrr": 3}}, protocol="paper")
    problems = find_problems(spec)
    assert len(problems) == 2, problems
    assert problems[0].startswith("erm has no hyperparameter lrr, only lr, ")
    assert problems[1].startswith("coral has no hyperparameter lrr, only lr, ")


def test_datasets_that_are_not_there_are_named(tmp_path):
    (tmp_path / "PACS" / "photo" / "dog").mkdir(parents=True)
    spec = SweepSpec(datasets=("PACS", "VLCS", "RotatedMNIST", "digits"), data=tmp_path)
    problems = data_problems(spec)
    assert list(problems) == ["VLCS", "RotatedMNIST"]
    assert "swad datasets download VLCS" in problems["VLCS"]
    with pytest.raises(ConfigError) as error:
        require_valid(spec)
    assert len(error.value.problems) == 2
    assert list(data_problems(SweepSpec(datasets=("PACS", "digits")))) == ["PACS"]
    assert missing_data(SweepSpec(datasets=("PACS", "VLCS"))) == [
        "datasets PACS, VLCS need their directories: give the one above them (--data)"
    ]
    assert list(data_problems(SweepSpec(datasets=("PACS",), data=tmp_path / "nowhere"))) == ["PACS"]
