"""Tests of Triton kernels run on a GPU, or without a GPU in the process of `test_kernels_interpreted.py`."""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
runs_kernels = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU or Triton's interpreter"
)
