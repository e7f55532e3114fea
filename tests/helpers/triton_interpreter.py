"""Run the tests of Triton kernels on a GPU, or without a GPU in Triton's interpreter, in a process of their own."""

import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
runs_kernels = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU or Triton's interpreter"
)
without_interpreter = pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available(), reason="the tests of this file run directly"
)


def run_in_the_interpreter(file: str) -> None:
    """Run the tests of a file in the interpreter, in a new process: Triton reads the variable when it is imported."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", file]
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    assert "passed" in result.stdout
