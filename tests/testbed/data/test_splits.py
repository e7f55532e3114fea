"""Splits are DomainBed's, and the target cannot leak into the sources."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swad.testbed.data.domains import ArrayDomain, Dataset
from swad.testbed.data.splits import DomainSplit, HeldOut, hold_out, seed_hash, split
from swad.util.images import DataError


def domain(name: str, n: int, value: int = 0, classes: int = 3) -> ArrayDomain:
    images = np.full((n, 4, 4, 3), value, np.uint8)
    return ArrayDomain(name, np.arange(n, dtype=np.int64) % classes, images)


def toy() -> Dataset:
    return Dataset("toy", tuple(domain(n, 20 + 5 * i, i) for i, n in enumerate("abcd")), ("x", "y", "z"))


def test_published_check_values():
    assert [seed_hash(0, i) for i in range(4)] == [894182419, 1514274641, 1325548499, 1796103049]
    indices = split(2048, 0, 0)
    assert indices.val[:3].tolist() == [548, 677, 1997]
    assert indices.train[:3].tolist() == [895, 510, 1575]
    assert (len(indices.val), len(indices.train), len(indices.test)) == (409, 1639, 0)


@pytest.mark.parametrize("trial", [0, 1, 2])
def test_splits_equal_those_of_the_published_code(trial):
    # The straightforward version: two shuffles of lists with the same seed.
    for n, index in [(2048, 0), (3929, 3), (7, 1)]:
        seed = seed_hash(trial, index)
        keys = list(range(n))
        np.random.RandomState(seed).shuffle(keys)
        assert split(n, trial, index).val.tolist() == keys[: int(n * 0.2)]
        out = keys[: int(n * 0.4)]
        again = list(range(len(out)))
        np.random.RandomState(seed).shuffle(again)
        half = len(out) // 2
        three = split(n, trial, index, three_way=True)
        assert three.train.tolist() == keys[int(n * 0.4) :]
        assert three.val.tolist() == [out[i] for i in again[:half]]
        assert three.test.tolist() == [out[i] for i in again[half:]]


@given(st.integers(0, 500), st.integers(0, 50), st.integers(0, 9), st.booleans())
def test_splits_are_disjoint_and_complete(n, trial, index, three_way):
    indices = split(n, trial, index, three_way=three_way)
    assert sorted(np.concatenate(indices).tolist()) == list(range(n))
    assert all(keys.dtype == np.int64 for keys in indices)
    assert len(indices.val) + len(indices.test) == int(n * (0.4 if three_way else 0.2))


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 5))
def test_a_smaller_subsample_is_part_of_a_larger_one(n, m, seed):
    keys = np.arange(1000, 1150, dtype=np.int64)
    whole = DomainSplit(domain("a", 1150), "val", keys)
    small, large = (set(whole.subsample(size, seed).keys.tolist()) for size in sorted((n, m)))
    assert small <= large <= set(keys.tolist())
    assert len(small) == min(n, m, 150)


def test_the_sources_do_not_contain_the_target():
    dataset = toy()
    for name in dataset.domain_names:
        sources, target = hold_out(dataset, name)
        assert name not in sources.names
        assert target.names == (name,)
        held = dataset.domains[dataset.index(name)]
        parts = (*sources.train, *sources.val, *sources.test)
        assert all(part.domain is not held for part in parts)
        # Nothing reachable from the sources refers to the held-out images.
        assert not any(value is held or value is dataset for value in vars(sources).values())
        full = np.concatenate([target.train[0].keys, target.val[0].keys])
        assert sorted(full.tolist()) == target.full[0].keys.tolist() == list(range(len(held)))


def test_a_domains_split_does_not_depend_on_the_target():
    dataset = toy()
    by_target = [hold_out(dataset, t).sources for t in ("a", "b")]
    in_c = [next(p.keys.tolist() for p in s.val if p.name == "c") for s in by_target]
    assert in_c[0] == in_c[1] == split(30, 0, 2).val.tolist()


def test_two_targets_and_a_three_way_split():
    held = hold_out(toy(), ["a", "d"], trial=1, three_way=True)
    assert isinstance(held, HeldOut)
    assert held.sources.names == ("b", "c")
    assert held.target.names == ("a", "d")
    for part, test in zip(held.sources.val, held.sources.test, strict=True):
        assert not set(part.keys.tolist()) & set(test.keys.tolist())
    assert [len(p) for p in held.target.train] == [12, 21]


@pytest.mark.parametrize("nothing", [None, ()])
def test_without_a_target_all_domains_are_sources(nothing):
    dataset = toy()
    sources, target = hold_out(dataset, nothing, trial=1)
    assert sources.names == dataset.domain_names
    assert target.names == target.full == target.train == ()
    held_out = hold_out(dataset, "a", trial=1).sources
    for part, same in zip(sources.val[1:], held_out.val, strict=True):
        assert part.keys.tolist() == same.keys.tolist()


def test_no_domain_may_be_named_none():
    with pytest.raises(DataError, match="the name none means no target; rename that domain"):
        Dataset("odd", (domain("none", 30), domain("b", 50)), ("x", "y", "z"))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("e", "no domain 'e'; its domains: a, b, c, d"),
        ("abcd", "no domain"),
        (list("abcd"), "at least one domain of toy must be left"),
    ],
)
def test_an_unknown_target_is_a_one_line_error(target, words):
    with pytest.raises(DataError, match=words) as caught:
        hold_out(toy(), target)
    assert "\n" not in str(caught.value)


def test_a_domain_with_too_few_images_is_refused():
    tiny = Dataset("tiny", (domain("a", 3), domain("b", 50)), ("x", "y", "z"))
    with pytest.raises(DataError, match=r"domain a of tiny .* too few to split"):
        hold_out(tiny, "b")
