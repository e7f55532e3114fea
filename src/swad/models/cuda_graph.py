"""TODO."""

from __future__ import annotations

import torch


def end_failed_capture() -> None:
    """Make the device usable again after a capture that failed.

    Torch leaves its random numbers in the state of a capture, and the next dropout would fail; a copy is not in it.
    """
    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
