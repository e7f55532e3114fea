"""Averages in PyTorch's distributed checkpoints (DCP), loadable on another number of processes.

Each rank writes its own shards; a checkpoint of two ranks loads on one or on four. Of tensors that every rank has in
full, DCP keeps one rank's: batch-norm statistics that differ between ranks become equal. The state of an average or of
a group may be one entry of a larger checkpoint:

    dcp.save({"model": ..., "swad": averager.state_dict()}, checkpoint_id=path)
    swad.averaging.distributed_checkpoint.load(averager, path, key="swad")
"""

from __future__ import annotations

import os
from typing import Any

from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from swad.averaging.average import Average
from swad.averaging.group import AverageGroup


def save(averager: Average | AverageGroup, path: str | os.PathLike[str], key: str = "swad") -> None:
    """Write the state of an average or a group as a distributed checkpoint. Every rank must call it.

    Args:
        averager: The average or group.
        path: Directory of the checkpoint.
        key: Entry of the checkpoint to write.
    """
    dcp_save({key: averager.state_dict(clone=False)}, checkpoint_id=path)


def load(averager: Average | AverageGroup, path: str | os.PathLike[str], key: str = "swad") -> None:
    """Restore an average or a group from a distributed checkpoint. Every rank must call it.

    Args:
        averager: The average or group, with the settings it was saved with.
        path: Directory of the checkpoint.
        key: Entry of the checkpoint to read.
    """
    # DCP reads tensors in place, and which sums there are depends on the phase of the valley. So the header comes
    # first, and the sums that it names are allocated.
    state: dict[str, Any] = {key: {"header": ""}}
    dcp_load(state, checkpoint_id=path)
    state = {key: averager.trajectory.prepare_to_load(state[key])}
    dcp_load(state, checkpoint_id=path)
    averager.load_state_dict(state[key])
