"""What a run writes: records, weights with their model cards, and messages. Only the main process writes files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from swad.testbed.data.splits import Sources
from swad.testbed.results.predictions import PREDICTIONS, write_predictions
from swad.testbed.results.records import Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.trackers.tracking import Tracking
from swad.testbed.training.callback import RunCallback
from swad.testbed.training.export import model_card, save_weights
from swad.testbed.training.predictions import Predictions
from swad.testbed.training.resolved_config import ResolvedConfig
from swad.testbed.training.run_dir import WEIGHTS, RunDir, disk_errors


class RunOutput:
    """The output of one process of a run. `run_dir` is None in all processes but the main one."""

    def __init__(self, config: ResolvedConfig, run_dir: RunDir | None, callback: RunCallback) -> None:
        self._config, self._run_dir, self._callback = config, run_dir, callback
        self.messages: list[str] = []
        if run_dir is not None:
            run_dir.warn_with(lambda text: self.log(f"warning: {text}"))

    def log(self, text: str) -> None:
        """Log a message about how this run is computed, once, and keep it for the result."""
        if text not in self.messages:
            self.messages.append(text)
            self._callback.on_log(text)

    def start_tracking(self) -> Tracking:
        """Start the trackers in the main process, and send them the records up to the checkpoint."""
        config = self._config
        settings = {name: value for section in config.to_dict().values() for name, value in section.items()}
        names = config.log if self._run_dir is not None else ()

        def warn(name: str, reason: str) -> None:
            self.log(
                f"warning: {name} failed, so the run continues without it ({reason}); "
                f"`swad log {config.output} --to {name}` sends the records later"
            )

        run = RunData(config.output, settings, (), finished=False)
        self._tracking = Tracking(run, names, self.records() if names else (), warn=warn, log=self.log)
        return self._tracking

    def append(self, records: Sequence[Record]) -> None:
        """Append records to those of the run, and send them to the trackers."""
        if self._run_dir is not None:
            self._run_dir.append(*records)
            self._tracking.log(records)

    def records(self) -> list[Record]:
        """Return all records of the run in the main process, none elsewhere."""
        return [] if self._run_dir is None else self._run_dir.records()

    def save_predictions(self, predictions: Predictions, classes: Sequence[str]) -> None:
        """Save what every set of weights predicts."""
        if self._run_dir is not None:
            with disk_errors(self._config.output / PREDICTIONS):
                write_predictions(self._config.output, classes, predictions.parts, predictions.outputs)

    def save_weights(
        self,
        name: str,
        weights: Mapping[str, Tensor],
        description: str,
        sources: Sources,
        step: int,
        averaged: Mapping[str, object] | None = None,
        scores: Mapping[str, object] | None = None,
    ) -> str:
        """Save weights with their model card and return the file's path in the run directory."""
        file = weights_file(name)
        if self._run_dir is not None:
            path = self._config.output / file
            card = model_card(self._config, sources, step, description, averaged, scores)
            with disk_errors(path):
                save_weights(path, weights, card)
        return file


def weights_file(name: str) -> str:
    """Return the path of a weights file in the run directory."""
    return f"{WEIGHTS}/{name}.safetensors"
