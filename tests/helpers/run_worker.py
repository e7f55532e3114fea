"""Train short runs: `python run_worker.py RUN_DIR [CHANGES [RUN_DIR CHANGES]]`, alone or as a process of torchrun.

With a change `interrupt_at`, the run is interrupted at that step and resumed. Without `checkpoint_every`, a checkpoint
is always due by the clock of the main process, and never by those of the others.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import safetensors.torch
import torch

from helpers import few_digits
from helpers.runs import interrupt_at, short
from swad.testbed.data.benchmarks import digits
from swad.testbed.training import loop
from swad.testbed.training.loop import RunError, RunInterrupted, train


def train_short(run_dir: Path, changes: dict[str, object]) -> None:
    """Train a whole run in this process; a target for multiprocessing."""
    digits.render = few_digits.render
    torch.set_num_threads(1)
    train(short(run_dir, **changes))


def _kill_in_save(tensors: object, path: Path, metadata: object) -> None:
    """Kill this process while weights are saved, with the temporary file of safetensors half written."""
    (path.parent / ".tmpaB3dE9").write_bytes(b"half a model")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    digits.render = few_digits.render
    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = 0.0 if os.environ.get("RANK", "0") == "0" else math.inf
    limit = os.environ.get("LIMIT_FILE_SIZE")
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    if "KILL_IN_SAVE" in os.environ:
        safetensors.torch.save_file = _kill_in_save
    if "WORLD_SIZE" in os.environ:  # joined once for all runs: at one address, a second time races with the first
        torch.distributed.init_process_group("gloo")
    for run_dir, text in zip_longest(sys.argv[1::2], sys.argv[2::2], fillvalue="{}"):
        changes = json.loads(text)
        step = changes.pop("interrupt_at", None)
        config = short(Path(run_dir), **changes)
        if step is not None:
            with suppress(RunInterrupted):
                train(config, callback=interrupt_at(step))
        try:
            result = train(config)
        except RunError as error:
            print(f"RunError: {error}")
            sys.exit(3)
        print(json.dumps(result.to_json()))


if __name__ == "__main__":
    main()
