"""Weights & Biases: a run of the project `swad` (or of $WANDB_PROJECT) for each run, by dataset and algorithm.

The curves are drawn over `step`, our number of updates. The internal step of W&B only grows, so values that belong to
an earlier step could not be added later; ours can. With WANDB_MODE=offline nothing is sent: `wandb sync` does it later.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from swad.results.trackers.base import PROJECT, BaseTracker, Status, TrackerError

INIT_SECONDS = 30.0
"""How long a run waits for the server before it trains without it."""


class Tracker(BaseTracker):
    """Logs to a W&B run, whose ID the state keeps."""

    def start(self) -> str:
        """Start the run, or continue it under its ID."""
        import wandb

        settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_SECONDS)
        # Without credentials `init` would wait for a key to be typed.
        if wandb.setup(settings).settings.mode == "online" and not wandb.login(prompt=False):
            raise TrackerError("not logged in: run `wandb login`, or set WANDB_MODE=offline")
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.state.setdefault("id", uuid.uuid4().hex[:12]),
            resume="allow",
            dir=self.run.path,
            name=self.run.name,
            group=self.run.group,
            config=dict(self.run.settings),
            reinit="create_new",  # one process may train several runs
            settings=settings,
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return str(self._run.url or f"wandb sync {self._run.settings.sync_dir}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row of the history."""
        self._run.log({"step": step, **values})

    def finish(self, status: Status) -> None:
        """Wait until everything is sent; an unfinished run counts as crashed, until it is resumed."""
        self._run.finish(exit_code=0 if status == "finished" else 1)
