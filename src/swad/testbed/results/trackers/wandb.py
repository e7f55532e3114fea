"""Weights & Biases: a run of the project `swad` (or of $WANDB_PROJECT) for each run, by dataset and algorithm.

The curves are drawn over `step`, our number of updates. The internal step of W&B only grows, so values that belong to
an earlier step could not be added later; ours can. With WANDB_MODE=offline nothing is sent: `wandb sync` does it later.

Offline, W&B holds values in memory, and they are lost when the process is killed. The next attempt then removes what is
left of the killed one and writes all of its values again.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swad.testbed.results.trackers.base import PROJECT, BaseTracker, Status, TrackerError

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
            name=self.name,
            group=f"{self.run.dataset}/{self.run.algorithm}",
            config=dict(self.run.config),
            reinit="create_new",  # one process may train several runs
            settings=settings,
        )
        if self._run.settings.mode == "offline":
            self.survives_kill = False
            self._remove_killed_attempt()
            self.state["attempt"] = Path(self._run.settings.sync_dir).name
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return str(self._run.url or f"wandb sync {self._run.settings.sync_dir}")

    def _remove_killed_attempt(self) -> None:
        """Remove the offline files of an attempt that did not finish, unless they have been sent since."""
        name = self.state.get("attempt", "")
        folder = self.run.path / "wandb" / name
        if name.startswith("offline-run-") and Path(name).name == name and not list(folder.glob("*.synced")):
            shutil.rmtree(folder, ignore_errors=True)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add a row of the history."""
        self._run.log({"step": step, **values})

    def finish(self, status: Status) -> None:
        """Wait until everything is sent; an unfinished run counts as crashed, until it is resumed."""
        self._run.finish(exit_code=0 if status == "finished" else 1)
        self.state.pop("attempt", None)
