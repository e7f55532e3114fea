"""Which weights and which images of a run are measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.tiny_runs import copied, tiny
from swad.testbed.data import benchmarks
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import hold_out
from swad.testbed.measure.engine import choose_weights
from swad.testbed.measure.saved_run import WINDOW, SavedRun, open_run, open_runs, stratified_subset
from swad.testbed.training.loop import RunError


@pytest.fixture
def run(tiny_run, tmp_path):
    """A run without measurements, whose SWAD averaged steps 10 to 30, as if it were so."""
    opened = open_run(copied(tiny_run, tmp_path / "run"))
    return replace(opened, ranges={"swad": {"start_step": 10, "end_step": 30}})


def test_a_run_says_which_weights_it_has(tiny_run):
    run = open_run(tiny_run)
    assert run.reported == ("best", "last", "swad", "swa")
    assert run.snapshots == {"step-000010": 10, "step-000020": 20, "step-000030": 30}
    assert run.full_name("20") == "step-000020"
    with pytest.raises(RunError, match="has no weights 'ema'; it has best, last, swad, swa, step-000010"):
        run.file("ema")


def test_folders_of_runs_are_searched_and_unfinished_runs_named(tiny_run, tmp_path):
    (tmp_path / "runs").mkdir()
    copied(tiny_run, tmp_path / "runs" / "a")
    open_ = copied(tiny_run, tmp_path / "runs" / "b")
    (open_ / "done.json").unlink()
    found, left_out = open_runs([tmp_path / "runs"])
    assert [run.path.name for run in found] == ["a"]
    assert left_out == [f"{open_} skipped: unfinished"]
    (tmp_path / "runs" / "a" / "done.json").unlink()
    with pytest.raises(RunError, match=r"no finished run to measure \(.*a and 1 more skipped: unfinished\): run"):
        open_runs([tmp_path / "runs"])
    with pytest.raises(RunError, match="b is unfinished: run its `swad train` or `swad sweep run` again to finish it"):
        open_run(open_)
    with pytest.raises(RunError, match="holds no run"):
        open_run(tmp_path)


def test_images_are_those_of_the_runs_own_split(tiny_run):
    run = open_run(tiny_run)
    images = run.images(30)
    assert (images.seen, images.unseen) == (("board", "clutter", "outline"), ("paper",))
    sources, target = hold_out(benchmarks.load("digits"), "paper", trial=0)
    for part in (*sources.train, *target.full):
        pictures, labels = images.by_domain[part.name]
        assert len(labels) == 30
        whole, whole_labels = next(iter(EvalLoader(part, sources.image_spec, 4096)))
        same = (pictures[:, None] == whole[None]).flatten(2).all(2)
        assert bool((same.sum(1) == 1).all()), "each is an image of the split, and only one"
        assert whole_labels[same.int().argmax(1)].tolist() == labels.tolist()
    everything = run.images(None)
    assert [len(labels) for _, labels in everything.by_domain.values()] == [360, 360, 360, 449]


@pytest.mark.parametrize("n", [1, 7, 50, 333, 10_000])
def test_a_stratified_subset_keeps_the_classes_in_proportion(n):
    part = hold_out(benchmarks.load("digits"), "paper").sources.train[1]
    some = stratified_subset(part, n)
    assert len(some) == min(n, len(part))
    assert set(some.keys) <= set(part.keys)
    assert len(set(some.keys)) == len(some)
    assert some.keys.tolist() == stratified_subset(part, n).keys.tolist()
    share = np.bincount(part.labels, minlength=10) * min(n, len(part)) / len(part)
    assert np.abs(np.bincount(some.labels, minlength=10) - share).max() < 1


def test_the_split_of_the_sources_is_that_of_the_run(run):
    sources, target = hold_out(benchmarks.load("digits"), "paper", trial=0)
    counts = {
        split: [len(labels) for _, labels in run.images(None, split=split).by_domain.values()]
        for split in ("training", "validation", "all")
    }
    whole = len(target.full[0])
    assert counts["training"] == [*(len(part) for part in sources.train), whole]
    assert counts["validation"] == [*(len(part) for part in sources.val), whole]
    both = zip(sources.train, sources.val, strict=True)
    assert counts["all"] == [*(len(train) + len(val) for train, val in both), whole]
    every = run.images(None, split="all").by_domain["board"][0]
    for split in ("training", "validation"):
        part = run.images(None, split=split).by_domain["board"][0]
        assert bool((part[:, None] == every[None]).flatten(2).all(2).any(1).all())


def test_a_window_without_snapshots_is_an_error(run):
    empty = replace(run, ranges={"swad": {"start_step": 21, "end_step": 29}})
    with pytest.raises(RunError, match=r"no snapshot inside the range that SWAD averaged \(21-29\): train it"):
        choose_weights([empty], [WINDOW])
    chosen, notes = choose_weights([empty, run], ["best", WINDOW])
    assert (chosen[1], notes) == ((run, ["best", WINDOW]), [])
    other = replace(run, path=Path("cyclic"), weights={"swa": "swa.safetensors"})
    chosen, notes = choose_weights([run, other], ["best"])
    assert (chosen, notes) == ([(run, ["best"])], ["skipped cyclic, which has none of best"])
    many = {f"step-{step:06d}": "file" for step in range(1, 31)}
    assert replace(run, weights=many).window_snapshots == tuple(f"step-{step:06d}" for step in (10, 15, 20, 25, 30))


@pytest.mark.parametrize("n", [None, 40])
@pytest.mark.parametrize("algorithm", ["arm", "mtl", "erm"])
def test_groups_of_images_mix_the_classes(tmp_path, monkeypatch, algorithm, n):
    """The target of a dataset in folders is ordered by class, and a group must not hold one class."""
    digits = benchmarks.load("digits")
    orders = [np.argsort(domain.labels, kind="stable") for domain in digits.domains]
    by_class = [
        replace(domain, labels=domain.labels[order], images=domain.images[order])
        for domain, order in zip(digits.domains, orders, strict=True)
    ]
    monkeypatch.setattr(benchmarks, "load", lambda *args, **options: replace(digits, domains=tuple(by_class)))
    run = SavedRun(tmp_path, tiny(tmp_path, algorithm=algorithm, hyperparameters={"batch_size": 8}), {})
    labels = run.images(n).by_domain["paper"][1]
    repeated = run.images(n).by_domain["paper"][1]
    assert labels.equal(repeated)
    if algorithm == "erm":
        assert labels.equal(labels.sort().values)
        return
    assert len(labels) == {None: 448, 40: 40}[n]
    groups = [len(set(group.tolist())) for group in labels.split(8)]
    assert min(groups) >= 3
    assert len(set(labels.tolist())) == 10
