"""Train several runs and show their progress: in this process, or several at a time by workers of this machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from swad.testbed.results.failures import read_failure, retry_failed
from swad.testbed.training.callback import make_display
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.local import train_locally
from swad.testbed.workers.watch import Watch

if TYPE_CHECKING:
    from swad.testbed.training.config import RunConfig
    from swad.testbed.training.run_dir import RunResult


def train_all(configs: Sequence[RunConfig], jobs: int = 1, processes: int = 1) -> list[RunResult]:
    """Train every run and display the progress; finished runs are returned at once, interrupted ones resume.

    Args:
        configs: The runs. All settings are checked before the first step of any run.
        jobs: How many runs train at a time, each in a process of its own with its share of the cores. Small networks
            do not fill a machine: several runs at a time finish sooner than one after another.
        processes: How many processes train a run together.
    """
    from swad.testbed.training.checks import require_processes
    from swad.testbed.training.distributed import in_main_process, launched, process_group
    from swad.testbed.training.loop import train
    from swad.testbed.training.resolve import resolution_notes, resolve
    from swad.testbed.training.run_dir import read_result

    if jobs * processes > 1 and launched()[1] > 1:
        raise ValueError("under torchrun, runs train one after another: leave torchrun out to train several at a time")
    resolved = [resolve(config) for config in configs]
    require_processes(resolved, processes)
    branches = [config for config in resolved if config.branch_from is not None]
    if jobs * processes > 1 and 0 < len(branches) < len(resolved):
        # A branch starts when the run that it branches from is done.
        trunks = [config for config in resolved if config.branch_from is None]
        return train_all(trunks, jobs, processes) + train_all(branches, jobs, processes)
    notes = dict.fromkeys(note for pair in zip(configs, resolved, strict=True) for note in resolution_notes(*pair))
    names = {config.output: name for config, name in zip(resolved, display_names(resolved), strict=True)}
    for line in notes if in_main_process() else ():
        print(line, flush=True)
    unfinished = [config for config in resolved if read_result(config) is None]
    workers = min(jobs, len(unfinished))
    if workers * processes > 1:
        _train_at_once(unfinished, workers, processes, names)
        return [train(config) for config in resolved]
    # Under torchrun one process group serves all runs: processes that leave one cannot join a second.
    joined = process_group(resolved[0].device) if launched()[1] > 1 else nullcontext()
    with joined, make_display(len(resolved)) as display:
        return [train(config, callback=display.of_run(names[config.output])) for config in resolved]


def display_names(configs: Sequence[RunConfig]) -> list[str]:
    """Return the name of every run in the display: target and trial, with what else differs between the runs."""
    several = len({config.algorithm for config in configs}) > 1
    schedules = len({config.lr_schedule for config in configs}) > 1
    return [f"{config.algorithm} " * several + config.name + f" {config.lr_schedule}" * schedules for config in configs]


def _train_at_once(configs: Sequence[RunConfig], jobs: int, processes: int, names: dict[Path, str]) -> None:
    """Train runs by workers. A failed run stops no other; the first failure is raised at the end."""
    from swad.testbed.training.run_dir import RunError

    for config in configs:
        retry_failed(config.output)
    devices = {config.device for config in configs}
    device = devices.pop() if len(devices) == 1 else "several"
    # The claims of workers of one command; the locks of run directories keep others out.
    with tempfile.TemporaryDirectory(prefix="swad-claims-") as folder, Watch(names.__getitem__) as watch:
        claims = Claims(Path(folder) / "claims")
        train_locally(partial(tuple, configs), claims, jobs, processes=processes, device=device, show=watch)
    for config in configs:
        failure = read_failure(config.output)
        if failure is None:
            continue
        if failure.lines and os.environ.get("SWAD_TRACEBACK"):
            print(*failure.lines, sep="\n", file=sys.stderr)
        hint = "; set SWAD_TRACEBACK=1 to see the traceback" if failure.traceback else ""
        raise RunError(f"{names[config.output]}: {failure.error}{hint}")
