"""How many of our modules a reader meets on the way from `swad train` to the saved weights."""

from __future__ import annotations

import pytest

from helpers import HELPERS
from helpers.commands import environment
from helpers.forked import run
from helpers.small_trees import class_names, make_tree
from swad.testbed.data import benchmarks

MOST = 80
"""It may only fall: merge what is one idea."""


@pytest.mark.slow
def test_a_short_training_calls_few_modules(tmp_path):
    pacs = benchmarks.get("PACS")
    make_tree(tmp_path / "PACS", list(pacs.domains), class_names(pacs), per_class=6)
    options = "--network test_resnet --weights random --steps 6 --evaluate-every 2 --image-size 32 --workers 0"
    command = ["train", "pacs", "--data", tmp_path, "-t", "sketch", *options.split(), "--allow-count-mismatch"]
    places = ["--cache", tmp_path / "cache", "--output", tmp_path / "runs"]
    result = run([HELPERS / "traced.py", *command, *places], env=environment())
    assert result.returncode == 0, result.stdout + result.stderr
    called = result.stdout.rpartition("called: ")[2].split()
    assert "testbed/training/loop.py" in called
    assert not [name for name in called if name.startswith(("testbed/measure", "testbed/paper", "testbed/sweep"))]
    assert len(called) <= MOST, called
