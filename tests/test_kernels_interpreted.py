"""Without a GPU, the tests of all Triton kernels run in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
TESTS = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU")
def test_all_kernels_in_the_interpreter():
    """One new process for all: Triton reads the variable when it is imported."""
    files = sorted(path for path in TESTS.glob("*/**/test_*kernel*.py") if "@runs_kernels" in path.read_text())
    assert len(files) == 3
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *files]
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    assert "passed" in result.stdout
