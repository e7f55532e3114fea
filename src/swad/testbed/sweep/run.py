"""Run a sweep: hand its runs to workers, which take one after another until none is left.

No process keeps what is not in the directories, so a sweep may be stopped at any moment and resumed by any workers, and
several commands may work on it and extend it. A failed run does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from swad.testbed.results.failures import retry_failed as retry
from swad.testbed.sweep.directory import SweepDir
from swad.testbed.sweep.spec import SweepSpec
from swad.testbed.sweep.status import SweepStatus, read_status
from swad.testbed.workers.claims import Claims
from swad.testbed.workers.run_queue import Runs
from swad.testbed.workers.work import State, refresh

Start = Callable[[Runs, Claims], None]
"""Starts workers and waits for them: `train_locally`, `train_on_slurm` or `train_on_ray` with their options."""


def run_sweep(
    sweep: SweepDir, start: Start, *, specs: Sequence[SweepSpec] | None = None, retry_failed: bool = False
) -> SweepStatus:
    """Train every run of a sweep that is not finished, and return where the sweep stands then.

    Args:
        start: Starts the workers.
        specs: Train the runs of these specs only. Default: those of all specs of the sweep.
        retry_failed: Also train runs that failed before.

    Raises:
        Interrupted: Ctrl-C or SIGTERM. The runs saved checkpoints; call again to resume.
    """
    plan = sweep.plan(specs)
    if retry_failed:
        for run in plan.runs:
            if sweep.state(run) is State.FAILED:
                retry(run.config.output)
    refresh([run.config for run in plan.runs], sweep.claims)
    start(partial(sweep.configs, specs), sweep.claims)
    return read_status(sweep, sweep.plan(specs))
