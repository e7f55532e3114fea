from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.commands import environment
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.data import benchmarks
from swad.testbed.sweep import checks
from swad.testbed.sweep.plan import expand, merge, same_request
from swad.testbed.sweep.search import PAPER_GRID
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.training.checks import find_problems
from swad.testbed.training.resolve import resolve


def keys(plan):
    return [run.key for run in plan.runs]


def test_paper_protocol_has_396_and_44_runs():
    plan = expand(SweepSpec(protocol="paper"), "sweep")
    assert (len(plan.runs), plan.pending, plan.total) == (396, 44, 440)
    assert {run.config.trial for run in plan.runs} == {0}
    assert {run.stage for run in plan.runs} == {"search"}
    assert plan.counts["DomainNet", "erm", "search"] == 108
    assert plan.counts["DomainNet", "erm", "repeat"] == 12
    assert len(plan.searches) == 22
    assert all(len(search.runs) == 18 for search in plan.searches)
    tried = {json.dumps(run.config.hyperparameters) for run in plan.searches[0].runs}
    assert len(tried) == 18


def test_domainbed_protocol_has_5280_runs():
    plan = expand(SweepSpec(protocol="domainbed"), "sweep")
    assert len(plan.runs) == len(set(keys(plan))) == 5280
    assert plan.pending == 0
    per_dataset = {name: count for (name, _, _), count in plan.counts.items()}
    sets = {name: n + n * (n - 1) // 2 for name in per_dataset for n in [len(benchmarks.get(name).domains)]}
    assert per_dataset == {name: 60 * number for name, number in sets.items()}
    defaults = [run for run in plan.runs if not run.config.hyperparameters]
    assert len(defaults) == 5280 // 20  # draw 0 of every trial and target set


@pytest.mark.parametrize(
    ("spec", "n", "digest"),
    [
        (SweepSpec(protocol="paper", datasets=("PACS",), algorithms=("erm", "mixup+sam")), 144, "14bf4f219629e489"),
        (
            SweepSpec(protocol="domainbed", datasets=("PACS", "OfficeHome"), algorithms=("erm", "coral"), draws=3),
            360,
            "5bcf7f016c3e9050",
        ),
        (SweepSpec(datasets=("digits",), averages=("swad:n_converge=2", "swa"), trials=(0, 1)), 8, "0cfb7766774900f9"),
    ],
)
def test_run_keys_never_change(spec, n, digest):
    """Runs of older versions are only found again while these keys stay."""
    found = keys(expand(spec, "sweep"))
    assert len(found) == n
    assert hashlib.sha256(" ".join(found).encode()).hexdigest()[:16] == digest


def test_a_sweep_without_a_target():
    spec = SweepSpec(protocol="paper", datasets=("digits",), targets=("none", "paper"), trials=(0, 1))
    plan = expand(spec, "sweep")
    by_target = {search.target: search for search in plan.searches}
    assert list(by_target) == ["paper", "none"]
    for name, targets in (("none", ()), ("paper", ("paper",))):
        assert {run.config.targets for run in by_target[name].runs} == {targets}
        assert {run.config.output.parent.name for run in by_target[name].runs} == {f"{name}-0"}
    assert len(by_target["none"].runs) == len(by_target["paper"].runs)
    assert not checks.find_problems(spec)
    # A folder with one domain has nothing to hold out, and an algorithm that needs several cannot use it.
    folder = SweepSpec(datasets=("folder",), data="mine", domains={"folder": ("images",)}, algorithms=("erm", "coral"))
    assert {run.config.targets for run in expand(folder, "sweep").runs} == {()}
    assert "coral needs at least 2 source domains, got images" in "".join(checks.find_problems(folder))


def test_draws_of_domainbed_differ_between_trials_and_those_of_random_do_not():
    def tried(protocol, trial, seeding="present"):
        spec = SweepSpec(protocol=protocol, datasets=("PACS",), targets=("photo",), draws=4, seeding=seeding)
        runs = [run for run in expand(spec, "sweep").runs if run.config.targets == ("photo",)]
        return [run.config.hyperparameters for run in runs if run.config.trial == trial]

    for seeding in ("2020", "present"):
        assert tried("domainbed", 0, seeding)[0] == {}
        assert tried("domainbed", 0, seeding)[1:] != tried("domainbed", 1, seeding)[1:]
        assert tried("random", 0, seeding) == tried("random", 1, seeding)
        assert {} not in tried("random", 0, seeding)  # the defaults are DomainBed's first draw only
    assert tried("domainbed", 0, "2020")[1:] != tried("domainbed", 0)[1:]


def test_lodo_plans_every_pair_with_a_target_once():
    spec = SweepSpec(datasets=("digits",), targets=("paper", "board"), trials=(0,), select="lodo")
    held_out = [run.config.targets for run in expand(spec, "sweep").runs]
    assert held_out[:2] == [("board",), ("paper",)]
    domains = benchmarks.get("digits").domains
    wanted = {pair for pair in itertools.combinations(domains, 2) if {"paper", "board"} & set(pair)}
    assert len(held_out[2:]) == len(wanted) == 5
    assert set(held_out[2:]) == wanted


def test_pairs_that_leave_too_few_domains_are_left_out():
    for algorithm in ("erm", "coral"):
        spec = SweepSpec(algorithms=(algorithm,), protocol="domainbed", datasets=("ColoredMNIST",))
        pairs = [run for run in expand(spec, "sweep").runs if len(run.config.targets) == 2]
        assert bool(pairs) is (get_algorithm(algorithm).min_domains == 1)


def test_averages_cost_no_run_and_their_settings_none_either():
    spec = SweepSpec(trials=(0,))
    many = dataclasses.replace(spec, averages=("swad", "swad:as=strict,tolerance_ratio=0.1", "ema", "swa", "sma"))
    assert len(expand(spec, "sweep").runs) == len(expand(many, "sweep").runs) == 4


def test_keys_do_not_depend_on_machine_settings_or_spelling():
    spec = SweepSpec(algorithms=("coral",), datasets=("PACS",), trials=(0,))
    wanted = keys(expand(spec, "sweep"))
    same = [
        dataclasses.replace(spec, algorithms=("CORAL",), datasets=("pacs",)),
        dataclasses.replace(spec, data="/elsewhere", options={"device": "cuda:1", "workers": 3, "cache": "/tmp/x"}),
        dataclasses.replace(spec, averages=tuple(reversed(spec.averages))),
        dataclasses.replace(spec, options={"hyperparameters": {"lr": 5e-5, "gamma": 1}}),  # the defaults
        dataclasses.replace(spec, options={"split": "80/20", "checkpoint_every": 5}),
    ]
    for other in same:
        assert keys(expand(other, "elsewhere")) == wanted, other
    different = [{"steps": 10}, {"seed": 1}, {"network": "resnet18"}, {"split": "60/20/20"}, {"snapshots": (5,)}]
    different += [{"hyperparameters": {"lr": 1e-4}}, {"keep_segments": True}, {"report_live": False}]
    for options in different:
        assert not set(keys(expand(dataclasses.replace(spec, options=options), "sweep"))) & set(wanted), options
    assert not set(keys(expand(dataclasses.replace(spec, averages=("swad",)), "sweep"))) & set(wanted)
    whole, real = (dataclasses.replace(spec, options={"hyperparameters": {"gamma": value}}) for value in (2, 2.0))
    assert keys(expand(whole, "sweep")) == keys(expand(real, "sweep"))


@pytest.mark.parametrize("dataset", ["folder", "Folder", "imagenet"])
def test_a_search_is_repeated_however_the_dataset_is_spelled(dataset):
    domains = {dataset: ("a", "b", "c")}
    plan = expand(SweepSpec(datasets=(dataset,), data="mine", domains=domains, protocol="paper"), "sweep")
    assert (len(plan.runs), plan.pending) == (18 * 3, 2 * 3)


def test_keys_are_the_same_in_every_process():
    script = (
        "from swad.testbed.sweep.plan import expand;"
        "from swad.testbed.sweep.spec import SweepSpec;"
        "print(*[run.key for run in expand(SweepSpec(protocol='domainbed', datasets=('PACS',), draws=2), 's').runs])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment() | {"PYTHONHASHSEED": "7"}
    )
    spec = SweepSpec(protocol="domainbed", datasets=("PACS",), draws=2)
    assert printed.stdout.split() == keys(expand(spec, "sweep")), printed.stderr


def test_every_run_of_the_plans_is_valid():
    specs = [
        SweepSpec(protocol="paper", algorithms=("erm", "dann", "arm", "coral+sam"), datasets=("PACS",), data="/data"),
        SweepSpec(protocol="random", algorithms=("dann", "i_mixup", "mtl"), draws=3, trials=(0,)),
        SweepSpec(protocol="grid", grid={"lr": (1e-3, 1e-2), "batch_size": (8,)}, options={"steps": 5}),
    ]
    for spec in specs:
        for run in expand(spec, "sweep").runs:
            assert find_problems(run.config) == [], run
    assert resolve(run.config).hyperparameters["batch_size"] == 8


def test_weight_decay_of_the_papers_grid_goes_to_the_predictor_of_dann():
    plan = expand(SweepSpec(protocol="paper", algorithms=("dann",), datasets=("PACS",)), "sweep")
    assert {run.config.hyperparameters["wd_g"] for run in plan.runs} == set(PAPER_GRID["weight_decay"])
    assert len(plan.runs) == 72


SPECS = st.builds(
    SweepSpec,
    algorithms=st.lists(st.sampled_from(["erm", "coral", "sam"]), min_size=1, max_size=2),
    datasets=st.lists(st.sampled_from(["digits", "PACS"]), min_size=1, max_size=2),
    trials=st.lists(st.integers(0, 3), min_size=1, max_size=2),
    protocol=st.sampled_from(["defaults", "random", "domainbed", "paper"]),
    draws=st.integers(1, 3),
    select=st.sampled_from([None, "iid", "lodo"]),
)


@given(st.lists(SPECS, min_size=1, max_size=3))
@settings(max_examples=25)
def test_a_union_of_plans_has_every_run_once(specs):
    plans = [expand(spec, "sweep") for spec in specs]
    union = merge(plans)
    assert len(keys(union)) == len(set(keys(union)))
    assert set(keys(union)) == {key for plan in plans for key in keys(plan)}
    # One key is one directory and one training.
    by_key = {}
    for run in (run for plan in plans for run in plan.runs):
        config = by_key.setdefault(run.key, run.config)
        assert config.output == run.config.output
        assert (config.targets, config.trial) == (run.config.targets, run.config.trial)
        assert config == run.config


def test_one_key_has_one_resolved_training_and_two_trainings_have_two_keys():
    """The slow twin: resolve every run, and compare what the runs would train."""
    grid = {"lr": (benchmarks.get("digits").defaults.lr, 0.5), "rho": (0.05,)}
    specs = [
        SweepSpec(algorithms=("sam",), protocol="grid", grid=grid, trials=(0,)),
        SweepSpec(algorithms=("erm", "sam"), trials=(0,)),
        SweepSpec(algorithms=("erm",), trials=(0,), options={"hyperparameters": {"lr": 0.5}}),
    ]
    by_key, by_training = {}, {}
    for run in (run for one in specs for run in expand(one, "sweep").runs):
        resolved = resolve(run.config)
        training = json.dumps([resolved.to_dict()["data"], resolved.to_dict()["training"]], default=str)
        assert by_key.setdefault(run.key, training) == training
        assert by_training.setdefault(training, run.key) == run.key
    assert len(by_key) == 4 * (2 + 1 + 1)  # sam twice, of which one point is the defaults; erm twice


@pytest.mark.slow
def test_domainbeds_plan_is_expanded_in_seconds():
    start = time.process_time()
    plan = expand(SweepSpec(protocol="domainbed"), "sweep")
    assert sum(plan.counts.values()) == 5280
    assert time.process_time() - start < 3


def test_only_an_own_folder_is_named_after_its_directory():
    names = ("folder", "imagenet")
    spec = SweepSpec(datasets=names, data="/data/mine", domains=dict.fromkeys(names, ("a", "b")), trials=(0,))
    plan = expand(spec, "sweep")
    assert list(plan.groups) == [("mine", "erm"), ("ImageNet", "erm")]
    moved = dataclasses.replace(spec, data="/elsewhere/of/mine")
    assert keys(expand(moved, "sweep")) == keys(plan)
    alone = dataclasses.replace(spec, datasets=("imagenet",))
    assert same_request(alone, dataclasses.replace(alone, data="/elsewhere"))


def test_a_linked_folder_is_named_after_the_link(tmp_path):
    (tmp_path / "mine").symlink_to(tmp_path, target_is_directory=True)
    spec = SweepSpec(datasets=("folder",), data=tmp_path / "mine", domains={"folder": ("a", "b")}, trials=(0,))
    assert list(expand(spec, "sweep").groups) == [("mine", "erm")]
