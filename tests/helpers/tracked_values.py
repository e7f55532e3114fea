"""Read back what trackers were given: curves as (name, step, value), in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Values = list[tuple[str, int, float]]


def wandb_records(run_dir: Path) -> Iterator[Any]:
    """Every record of the offline files of a run, in the order of the files.

    A file is a header of 7 bytes and blocks of 32 KiB, as in a LevelDB log: checksum, length, kind, data.
    """
    from wandb.proto import wandb_internal_pb2

    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        content, at, part = path.read_bytes(), 7, b""
        while at + 7 <= len(content):
            left = 32768 - at % 32768
            if left < 7:
                at += left
                continue
            size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
            part += content[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # whole, or the last part
                yield wandb_internal_pb2.Record.FromString(part)
                part = b""


def wandb_values(run_dir: Path) -> Values:
    values: Values = []
    for record in wandb_records(run_dir):
        if record.WhichOneof("record_type") == "history":
            row = {item.nested_key[0] if item.nested_key else item.key: item.value_json for item in record.history.item}
            step = int(json.loads(row.pop("step")))
            values += [(name, step, float(json.loads(text))) for name, text in row.items() if not name.startswith("_")]
    return values


def mlflow_values(uri: str, run_id: str) -> Values:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return [
        (name, metric.step, metric.value)
        for name in client.get_run(run_id).data.metrics
        for metric in client.get_metric_history(run_id, name)
    ]


def tensorboard_values(run_dir: Path) -> Values:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"tensors": 0})
    accumulator.Reload()
    return [
        (name, event.step, event.tensor_proto.float_val[0])
        for name in accumulator.Tags()["tensors"]
        for event in accumulator.Tensors(name)
    ]


def tracked_values(run_dir: Path) -> dict[str, Values]:
    """What each tool has of a run."""
    state = json.loads((run_dir / "trackers.json").read_text())
    found: dict[str, Values] = {}
    if "wandb" in state:
        found["wandb"] = wandb_values(run_dir)
    if "mlflow" in state and state["mlflow"]["tool"]:
        found["mlflow"] = mlflow_values(**state["mlflow"]["tool"])
    if "tensorboard" in state:
        found["tensorboard"] = tensorboard_values(run_dir)
    return found
