"""WSM: weights of a constant learning rate, averaged as if the learning rate had decayed."""

from __future__ import annotations

from torch import nn

from swad.averaging.average import Average
from swad.averaging.latest import DecayCurve, Decayed
from swad.averaging.tracked import Buffers
from swad.tensors.names import Patterns


class WSM(Average):
    """Warmup-stable and merge: the mean sum c_j theta_j at the last k evaluations, which emulates a decay.

    Train with a constant learning rate, and read the average at any time instead of decaying. `wsm_coefficients` says
    what c is, and why. Call `observe` where you would save a checkpoint; the loss is not used. It holds k copies of the
    averaged tensors, which `offload=True` keeps in host memory. To average checkpoints that are on disk, use
    `swad.merge`.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> average = WSM(model, k=4)
    >>> for value in (0., 1., 2., 3.):
    ...     _ = model.weight.data.fill_(value)
    ...     average.update_parameters(model)
    ...     _ = average.observe(0.0)
    >>> round(average.averaged_state()["weight"].item(), 4)  # (1 - sqrt(1/4)) + (1 - sqrt(2/4)) + (1 - sqrt(3/4))
    0.9269

    Args:
        model: The model to follow.
        k: How many evaluations: the length of the emulated decay.
        decay: The decay to emulate: "1-sqrt", "linear" (the mean of LAWA) or "cosine".
        buffers: "copy" keeps the buffers of the last evaluation; "average" averages floating-point buffers too.
        offload: Keep all sums in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
    """

    def __init__(
        self,
        model: nn.Module,
        k: int = 5,
        decay: DecayCurve = "1-sqrt",
        *,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__(model, Decayed(k, decay), buffers=buffers, offload=offload, include=include, exclude=exclude)
