"""MLflow: one run of the experiment `swad` (or of $MLFLOW_EXPERIMENT_NAME) for each run.

$MLFLOW_TRACKING_URI names the server or store. Without it MLflow's default holds: a database in the current
directory, or with the small package `mlflow-skinny`, which has no database, the folder `mlruns`.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swad.testbed.results.trackers.base import PROJECT, BaseTracker, Status

STATUSES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
LONGEST = 500
"""Longest text of a parameter that every version of MLflow accepts."""


class Tracker(BaseTracker):
    """Logs to an MLflow run, whose ID and store the state keeps."""

    def start(self) -> str:
        """Create the run, or continue it if the store still has it."""
        _configure()
        import mlflow
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        uri = mlflow.get_tracking_uri()
        self._client: Any = MlflowClient(tracking_uri=uri)
        if self.state.get("uri") == uri:
            try:
                self._client.update_run(self.state["run_id"], status="RUNNING")
            except MlflowException:
                self.state.clear()  # removed by its user
        if self.state.get("uri") != uri:
            self.state.clear()
            self.state.update(uri=uri, run_id=self._create_run())
        return f"MLflow run {self.state['run_id']} at {uri}"

    def _create_run(self) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment_id = self._experiment_id(name)
        tags = {name: str(self.run.config.get(name)) for name in ("dataset", "algorithm", "target", "trial")}
        run_id = str(self._client.create_run(experiment_id, run_name=self.name, tags=tags).info.run_id)
        settings: dict[str, Any] = {}  # `hyperparameters.lr` and so on for those of the algorithm
        for key, value in self.run.config.items():
            settings |= {f"{key}.{k}": item for k, item in value.items()} if isinstance(value, dict) else {key: value}
        params = [Param(name, str(value)[:LONGEST]) for name, value in settings.items()]
        self._client.log_batch(run_id, params=params[:100])
        return run_id

    def _experiment_id(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another run has created it meanwhile
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def n_sent(self) -> int:
        """Count the values in the store, which has them whatever became of the process that sent them."""
        run_id = self.state["run_id"]
        names = self._client.get_run(run_id).data.metrics
        return sum(len(self._client.get_metric_history(run_id, name)) for name in names)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send one batch."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        for start in range(0, len(metrics), 1000):  # the most that a server accepts at once
            self._client.log_batch(self.state["run_id"], metrics=metrics[start : start + 1000])

    def finish(self, status: Status) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self.state["run_id"], STATUSES[status])


def _configure() -> None:
    """Set what the user has not set: a store that works, and short waits for a server that does not answer."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    import mlflow

    if not mlflow.is_tracking_uri_set() and importlib.util.find_spec("sqlalchemy") is None:
        mlflow.set_tracking_uri(Path("mlruns").absolute().as_uri())
    if mlflow.get_tracking_uri().startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
