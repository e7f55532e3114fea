"""Skips tests of the library that use what its oldest torch lacks."""

import pytest
import torch

NEEDS_FSDP2_ON_CPUS = pytest.mark.skipif(torch.__version__ < "2.7", reason="FSDP2 on CPUs needs torch 2.7")


def require_testbed() -> None:
    if torch.__version__ < "2.8":
        pytest.skip("the testbed needs torch 2.8")
