"""Torch's global switches, the precision and the seeds of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch

from swad.testbed.training.config import ResolvedConfig

NOISE, WEIGHTS = 3, 4
"""First numbers of seeds. They keep these random streams apart from those of the batches, which start with 1 and 2."""


@contextmanager
def torch_settings(config: ResolvedConfig, device: torch.device) -> Iterator[None]:
    """Apply the determinism and threads of a run to torch for the block; random states are restored as well."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    n_threads = torch.get_num_threads()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(True)
    # Benchmarking every algorithm took 6 to 9 s and found none faster: ResNet-50 in bf16, 13.2 ms either way (H200).
    torch.backends.cudnn.benchmark = False
    if config.threads is not None and config.threads != n_threads:
        torch.set_num_threads(config.threads)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        if config.deterministic:  # only then: the call imports torch's compiler, which takes seconds
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if torch.get_num_threads() != n_threads:
            torch.set_num_threads(n_threads)


def autocast(config: ResolvedConfig, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of forward passes in the precision of a run."""
    if config.precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def derive_seed(*numbers: int) -> int:
    """Derive one seed for torch from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the CPU and this run's GPUs. `torch.manual_seed` would store a stack trace for each absent device type."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
