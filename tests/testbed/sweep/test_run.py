from __future__ import annotations

import dataclasses
import json
import pickle

import pytest

from helpers.fake_train import fake_train
from swad.testbed.results.failures import write_failure
from swad.testbed.results.records import DONE, LOCK, DirectoryLockedError, read_records
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import select
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.run import run_sweep
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.sweep.status import read_status
from swad.testbed.training import loop
from swad.testbed.training.run_dir import RunLockedError
from swad.testbed.workers import claims as c
from swad.testbed.workers.work import State, work
from swad.util.files import FileLock
from swad.util.signals import Interrupted

GRID = SweepSpec(
    protocol="paper", datasets=("digits",), grid={"lr": (0.1, 0.2, 0.3)}, averages=("swad",), targets=("paper", "board")
)


def prefer(best):
    """Source-validation accuracy is highest for one lr by target, where the target's accuracy is lowest."""
    return fake_train(lambda config: 0.9 if config.hyperparameters.get("lr") == best(config) else 0.5)


TRAIN = prefer(lambda config: 0.2 if config.targets == ("paper",) else 0.3)


class Worker:
    """Starts one worker, in this process.

    Args:
        train: Trains a run; by default the real training.
        before: Called before every run; may raise KeyboardInterrupt.
    """

    def __init__(self, train=None, before=lambda config: None):
        self.train, self.before, self.order = train, before, []

    def __call__(self, runs, claims):
        def train(config):
            self.before(config)
            self.order.append(config)
            (self.train or loop.train)(config)

        work(runs, claims, train)


def started(tmp_path, *specs, **options):
    sweep = SweepDir(tmp_path / "sweep", **options)
    for spec in specs:
        sweep.add(spec)
    return sweep


def test_the_choice_of_the_first_trial_is_repeated_in_the_others(tmp_path):
    sweep, worker = started(tmp_path, GRID), Worker(TRAIN)
    assert (len(sweep.plan().runs), sweep.plan().pending) == (6, 4)
    status = run_sweep(sweep, worker)
    assert status.complete
    assert status.total == 10
    names = sorted((config.target, config.trial, config.hyperparameters["lr"]) for config in worker.order)
    assert [name for name in names if name[1] > 0] == [
        ("board", 1, 0.3),
        ("board", 2, 0.3),
        ("paper", 1, 0.2),
        ("paper", 2, 0.2),
    ]
    assert sweep.choices["erm on digits, target board"] == {"lr": 0.3}
    plan = SweepDir(sweep.path).plan()
    assert (len(plan.runs), plan.pending) == (10, 0)  # derived from the records alone, by another reader
    assert {run.stage for run in plan.runs} == {"search", "repeat"}


def test_the_choice_never_sees_the_target(tmp_path):
    """Other values of the target, and even none, lead to the same choice."""
    sweep = started(tmp_path, GRID)
    run_sweep(sweep, Worker(TRAIN))
    before = {run.key for run in sweep.plan().runs}
    for run in sweep.plan().runs:
        path = run.config.output / "records.jsonl"
        kept = [line for line in path.read_text().splitlines() if json.loads(line)["domain"] not in run.config.targets]
        path.write_text("\n".join(kept) + "\n")
    assert {run.key for run in SweepDir(sweep.path).plan().runs} == before


def test_choose_by_names_the_weights(tmp_path):
    def train(config, callback=None):
        TRAIN(config)
        if config.hyperparameters["lr"] == 0.1:
            path = config.output / "records.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for line in lines:
                line["value"] = 0.99 if line["average"] == "swad" else line["value"]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    for choose_by, lr in (("best", 0.2), ("swad", 0.1)):
        spec = dataclasses.replace(GRID, choose_by=choose_by, targets=("paper",))
        sweep = started(tmp_path / choose_by, spec)
        run_sweep(sweep, Worker(train))
        repeats = [run for run in sweep.plan().runs if run.stage == "repeat"]
        assert {run.config.hyperparameters["lr"] for run in repeats} == {lr}


def test_lodo_chooses_by_the_pairs_and_repeats_them_too(tmp_path):
    spec = dataclasses.replace(GRID, select="lodo", targets=("paper",))

    def accuracy(config):
        # On its own validation split lr 0.1 is best, on held-out sources lr 0.3: fake_train gives targets 1 - value.
        lr = config.hyperparameters["lr"]
        if len(config.targets) == 1:
            return {0.1: 0.9, 0.2: 0.5, 0.3: 0.5}[lr]
        return {0.1: 0.9, 0.2: 0.5, 0.3: 0.2}[lr]

    def train(config, callback=None):
        fake_train(accuracy)(config)

    sweep = started(tmp_path, spec)
    plan = sweep.plan()
    assert (len(plan.runs), plan.pending) == (3 * 4, 2 * 4)
    status = run_sweep(sweep, Worker(train))
    assert status.complete
    repeats = [run for run in sweep.plan().runs if run.stage == "repeat"]
    assert {run.config.hyperparameters["lr"] for run in repeats} == {0.3}
    assert len(repeats) == 8
    selection = select(find_runs(sweep.path / "runs"), "lodo", "best")
    assert [(result.target, result.trial) for result in selection.itertuples()] == [
        ("paper", 0),
        ("paper", 1),
        ("paper", 2),
    ]


def test_a_failed_run_stops_nothing_and_is_retried_on_request(tmp_path):
    spec = SweepSpec(datasets=("digits",), trials=(0,), averages=("swad",))
    broken = {"paper"}

    def train(config, callback=None):
        if config.target in broken:
            raise ValueError("the disk is full")
        TRAIN(config)

    sweep = started(tmp_path, spec)
    status = run_sweep(sweep, Worker(train))
    assert (status.count(State.DONE), status.count(State.FAILED)) == (3, 1)
    assert not status.complete
    ((name, failure),) = status.failed.items()
    assert name.startswith("digits/erm/paper-0/")
    assert failure.error == "ValueError: the disk is full"

    broken.clear()
    worker = Worker(train)
    assert run_sweep(sweep, worker).count(State.FAILED) == 1  # not unasked
    assert worker.order == []
    worker = Worker(train)
    assert run_sweep(sweep, worker, retry_failed=True).complete
    assert len(worker.order) == 1


def test_a_search_with_a_failed_run_waits_unless_allowed(tmp_path):
    spec = dataclasses.replace(GRID, targets=("paper",))

    def train(config, callback=None):
        if config.hyperparameters["lr"] == 0.1:
            raise ValueError("the training diverged")
        TRAIN(config)

    sweep = started(tmp_path, spec)
    status = run_sweep(sweep, Worker(train))
    assert status.waiting == 2
    assert (status.count(State.DONE), status.total) == (2, 5)
    allowed = SweepDir(sweep.path, allow_failed=True)
    status = run_sweep(allowed, Worker(train))
    assert (status.count(State.DONE), status.waiting) == (4, 0)

    def fail_at_last(config, callback=None):
        if config.hyperparameters["lr"] == 0.3:
            raise ValueError("the training diverged")
        TRAIN(config)

    status = run_sweep(started(tmp_path / "at once", spec, allow_failed=True), Worker(fail_at_last))
    assert (status.count(State.DONE), status.waiting) == (4, 0)


def test_an_interrupted_sweep_resumes_without_repeating(tmp_path):
    sweep = started(tmp_path, GRID)
    count = 0

    def interrupt(config):
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt

    worker = Worker(TRAIN, before=interrupt)
    with pytest.raises(Interrupted, match=r"Run the same command again to train"):
        run_sweep(sweep, worker)
    again = Worker(TRAIN)
    assert run_sweep(SweepDir(sweep.path), again).complete
    assert {config.output for config in worker.order} & {config.output for config in again.order} == set()
    assert len(worker.order) + len(again.order) == 10


def test_a_sweep_is_extended_without_repeating(tmp_path):
    spec = SweepSpec(datasets=("digits",), trials=(0,), averages=("swad",), targets=("paper",))
    sweep = started(tmp_path, spec)
    first = Worker(TRAIN)
    run_sweep(sweep, first)
    sweep.add(dataclasses.replace(spec, trials=(0, 1), algorithms=("erm", "coral")))
    second = Worker(TRAIN)
    assert run_sweep(sweep, second).total == 4
    assert len(second.order) == 3
    assert not {config.output for config in first.order} & {config.output for config in second.order}
    only_new = Worker(TRAIN)
    later = dataclasses.replace(spec, trials=(5,))
    sweep.add(later)
    assert run_sweep(sweep, only_new, specs=[later]).total == 1


def test_runs_that_wait_for_one_choice_are_counted_once(tmp_path):
    sweep = started(tmp_path, GRID, dataclasses.replace(GRID, trials=(0, 1, 2, 3)))
    assert (len(sweep.plan().runs), sweep.plan().pending) == (6, 2 * 3)
    other = dataclasses.replace(GRID, choose_by="swad", trials=(0, 1))
    assert sweep.plan([GRID, other]).pending == 2 * 2 + 2
    assert run_sweep(sweep, Worker(TRAIN)).total == 12


def test_a_run_that_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(c, "BEAT", 0.01)
    spec = SweepSpec(datasets=("digits",), trials=(0,), averages=("swad",), targets=("paper", "board"))
    sweep = started(tmp_path, spec)
    elsewhere, here = sweep.plan().runs
    elsewhere.config.output.mkdir(parents=True)
    lock = FileLock(elsewhere.config.output / LOCK)
    assert sweep.state(elsewhere) is State.RUNNING
    trained = []

    def train(config):
        try:
            TRAIN(config)
        except DirectoryLockedError as error:
            raise RunLockedError(str(error)) from None
        trained.append(config)
        lock.release()

    assert run_sweep(sweep, Worker(train)).complete
    assert trained == [here.config, elsewhere.config]


@pytest.mark.parametrize("failed", [False, True])
def test_a_search_that_another_process_completes_is_continued(tmp_path, failed):
    sweep = started(tmp_path, dataclasses.replace(GRID, targets=("paper",)), allow_failed=True)
    elsewhere = sweep.plan().runs[0].config

    def end_elsewhere(config):
        if failed:
            write_failure(elsewhere.output, "out of memory")
        else:
            TRAIN(elsewhere)

    worker = Worker(TRAIN, before=lambda config: None if (elsewhere.output / DONE).exists() else end_elsewhere(config))
    status = run_sweep(sweep, worker)
    assert (status.count(State.DONE) + status.count(State.FAILED), status.groups[0].waiting) == (5, 0)


@pytest.mark.slow
def test_real_runs_through_the_paper_protocol(tmp_path):
    """Nothing is replaced: real trainings, records, choice and selection."""
    spec = SweepSpec(
        protocol="paper",
        datasets=("digits",),
        targets=("paper",),
        trials=(0, 1),
        grid={"lr": (1e-5, 1e-2)},
        averages=("swad:n_converge=2", "ema"),
        options={"steps": 12, "evaluate_every": 4, "hyperparameters": {"batch_size": 8}},
    )
    sweep = started(tmp_path, spec)
    status = run_sweep(sweep, Worker())
    assert status.complete
    assert status.total == 3
    assert status.groups[0].seconds > 0
    runs = find_runs(sweep.path / "runs")
    chosen = {run.hyperparameters["lr"] for run in runs if run.trial == 1}

    best = max((run for run in runs if run.trial == 0), key=accuracy_of)
    assert chosen == {best.hyperparameters["lr"]}
    assert select(runs, "iid", "swad").trial.tolist() == [0, 1]


def accuracy_of(run):
    """The mean accuracy of `best` over the sources' validation splits, written out."""
    values = [
        record.value
        for record in read_records(run.path)
        if record.metric == "accuracy"
        and record.average == "best"
        and record.split == "out"
        and record.domain not in run.targets
    ]
    assert len(values) == 3
    return sum(values) / 3


def test_status_counts_every_state(tmp_path):
    spec = SweepSpec(datasets=("digits",), trials=(0,), averages=("swad",))
    sweep = started(tmp_path, spec)
    done, failed, running, _ = sweep.plan().runs
    TRAIN(done.config)
    write_failure(failed.config.output, "out of memory", ["Traceback", "RuntimeError: out of memory"])
    running.config.output.mkdir(parents=True)
    with FileLock(running.config.output / LOCK):
        status = read_status(sweep)
    assert {state: status.count(state) for state in State} == dict.fromkeys(State, 1)
    assert status.seconds_left() == 2.0 * (1 + 0.5)  # one pending, and half of the running one
    assert read_status(sweep).count(State.RUNNING) == 0


def test_a_claim_of_a_living_owner_is_a_running_run(tmp_path):
    sweep = started(tmp_path, SweepSpec(datasets=("digits",), trials=(0,), averages=("swad",), targets=("paper",)))
    (run,) = sweep.plan().runs
    claim = sweep.claims.take(sweep.claims.name(run.config.output))
    assert sweep.states() == {run.key: State.RUNNING}
    claim.release()
    assert sweep.states() == {run.key: State.PENDING}


def test_the_plan_is_made_again_only_when_it_changes(tmp_path, monkeypatch):
    """Commands ask for the runs twice a second."""
    sweep, plans = started(tmp_path, GRID), []
    plan = sweep.plan
    monkeypatch.setattr(sweep, "plan", lambda specs=None: plans.append(specs) or plan(specs))
    assert len(sweep.configs()) == len(sweep.configs()) == 6
    for run in plan().runs[:3]:
        TRAIN(run.config)
    assert len(sweep.configs()) == len(sweep.configs()) == 8
    SweepDir(sweep.path).add(dataclasses.replace(GRID, trials=(0, 1, 2, 3)))
    assert len(sweep.configs()) == 9
    assert plans == [None] * 3
    assert len(pickle.loads(pickle.dumps(sweep.configs))()) == 9
