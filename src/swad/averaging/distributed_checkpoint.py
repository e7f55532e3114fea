"""Averages in PyTorch's distributed checkpoints (DCP), loadable on another number of processes.

Each rank writes its own shards; a checkpoint of two ranks loads on one or on four. Of tensors that every rank
has whole, one rank's are kept: batch-norm statistics that differ between ranks become alike. The state of an
average, or of a whole feed, may be one entry of a larger checkpoint:

    dcp.save({"model": ..., "swad": averager.state_dict()}, checkpoint_id=path)
    swad.averaging.distributed_checkpoint.load(averager, path, key="swad")
"""

from __future__ import annotations

import os
from typing import Any

from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from swad.averaging.base import Average
from swad.averaging.group import AverageGroup


def save(averager: Average | AverageGroup, path: str | os.PathLike[str], key: str = "swad") -> None:
    """Write the average's state as a distributed checkpoint of its own; every rank must call it."""
    dcp_save({key: averager.state_dict(clone=False)}, checkpoint_id=path)


def load(averager: Average | AverageGroup, path: str | os.PathLike[str], key: str = "swad") -> None:
    """Read the state under `key` of a distributed checkpoint; every rank must call it.

    DCP fills tensors in place and so needs to know them beforehand. Which pieces there are depends on where
    the valley was, so the header is read first and room made for what it names.
    """
    header: dict[str, Any] = {key: averager.headers()}
    dcp_load(header, checkpoint_id=path)
    state: dict[str, Any] = {key: averager.prepare_to_load(header[key])}
    dcp_load(state, checkpoint_id=path)
    averager.load_state_dict(state[key])
