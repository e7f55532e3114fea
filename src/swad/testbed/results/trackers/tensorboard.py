"""TensorBoard: event files in the run directory.

TensorBoard draws every event file of a directory into one curve, so they are rewritten whenever a run starts or is
resumed: they hold the records of the run, and none that a resumed run made twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from swad.testbed.results.trackers.base import BaseTracker, Status
from swad.util.files import require_no_link

FOLDER = "tensorboard"


class Tracker(BaseTracker):
    """Writes event files to `tensorboard` in the run directory."""

    def start(self) -> str:
        """Remove the event files of an earlier attempt."""
        from tensorboard.summary import Writer

        path = self.run.path / FOLDER
        require_no_link(path)
        shutil.rmtree(path, ignore_errors=True)
        self._writer: Any = Writer(str(path))
        return f"tensorboard --logdir {path}"

    def n_sent(self) -> int:
        """Return 0: the files are empty."""
        return 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append to the event file; TensorBoard shows it at once."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, status: Status) -> None:
        """Close the event file."""
        self._writer.close()
