"""Every example runs as its first lines say, without a network, and tells what it averaged."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"lightning_trainer": "lightning", "huggingface_trainer": "transformers", "timm_loop": "timm"}


def test_there_are_examples():
    assert set(NEEDS) | {"pytorch_loop"} <= {example.stem for example in EXAMPLES}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    for package in ("sklearn", NEEDS.get(example.stem, "torch")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    assert f"python examples/{example.name}" in example.read_text()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    env.pop("OMP_NUM_THREADS", None)  # the example sets its threads itself
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"Cost: about (\d+) seconds on one CPU core", example.read_text())
    first, last, n = map(int, re.search(r"averaged steps (\d+) to (\d+), (\d+) of them", done.stdout).groups())
    assert 0 < first < last
    assert n == last - first + 1
    live, averaged = map(float, re.search(r"live ([\d.]+)%, averaged ([\d.]+)%", done.stdout).groups())
    assert averaged > 60
    assert averaged >= live - 1
    assert "NeverConvergedWarning" not in done.stderr
    assert not list(tmp_path.iterdir())  # nothing is left behind
