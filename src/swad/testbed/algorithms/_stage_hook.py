"""The base class of forward hooks on the stages of a network."""

from __future__ import annotations

from torch import Tensor, nn

from swad.testbed.models import networks


class StageHook:
    """A forward hook that finds the channels of a stage's map, which networks put first or last.

    Args:
        method: Name of the algorithm, for the error message.
        network: The network of the stage.
        stage: Index of the stage.
        channels: Number of channels after the stage.
    """

    def __init__(self, method: str, network: nn.Module, stage: int, channels: int) -> None:
        self.method, self.stage, self.channels = method, stage, channels
        self.network, self.layout = type(network).__name__, getattr(network, "output_fmt", "NCHW")

    def channel_axis(self, maps: object) -> int:
        """Return the axis of the channels."""
        if isinstance(maps, Tensor) and maps.ndim == 3 and maps.shape[-1] == self.channels:
            return 2
        if isinstance(maps, Tensor) and maps.ndim == 4:
            first, last = maps.shape[1] == self.channels, maps.shape[-1] == self.channels
            if first and last:  # as many columns as channels: timm knows the layout
                first = self.layout == "NCHW"
            if first or last:
                return 1 if first else 3
        output = f"shape {tuple(maps.shape)}" if isinstance(maps, Tensor) else f"a {type(maps).__name__}"
        raise networks.NetworkError(
            f"{self.method} needs maps with {self.channels} channels first or last after stage {self.stage + 1} of "
            f"{self.network}, got {output}: choose another network"
        )
