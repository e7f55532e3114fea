"""SWAD: the dense average of the weights inside the loss valley."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from swad.averaging.average import Average
from swad.averaging.rule import FalseStartWarning as FalseStartWarning
from swad.averaging.rule import NeverConvergedWarning as NeverConvergedWarning
from swad.averaging.tracked import Buffers
from swad.averaging.valley import LossValley, Nonfinite, Semantics
from swad.tensors.names import Patterns


class SWAD(Average):
    """Average the weights of every update between the lowest validation loss and the start of overfitting.

    Cha et al., "SWAD: Domain Generalization by Seeking Flat Minima", NeurIPS 2021 (`swad.averaging.algorithm1` finds
    the start and the end). Three lines in a training loop; the learning rate is never touched:

    >>> import torch, swad
    >>> model = torch.nn.Linear(2, 1)
    >>> averager = swad.SWAD(model)                             # 1
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for step in range(1, 91):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(1, 2)).square().sum().backward()
    ...     optimizer.step()
    ...     averager.update_parameters(model)                   # 2: after every optimizer step
    ...     if step % 10 == 0:
    ...         val_loss = 1.0 + abs(step - 30) / 50            # of the live model
    ...         if averager.observe(val_loss).should_stop:      # 3: after every evaluation
    ...             break
    >>> averager.copy_to(model)
    >>> averager.status.start_step, averager.status.end_step
    (30, 90)

    How often to evaluate: the start and the end are found only at evaluations. The defaults look at 3 of them to
    confirm the start and at 6 to detect the end, so a training needs several times as many. The paper evaluates every
    100 of 5,000 updates (VLCS: every 50).

    Batch norm: if it was in training mode, its running statistics belong to one update and not to the average. Call
    `swad.update_bn(train_loader, model)` after `copy_to`. Frozen statistics, as in the paper, and networks without
    batch norm need nothing.

    Memory: two float32 copies of the averaged tensors in steady state. `paper` holds a third one, for at most N_e - 1
    evaluations, if the loss jumps from its lowest value to more than 3.25 times that (at the default settings): until a
    loss is at or below the threshold, the average may still end before or after the jump. `semantics="reference"` needs
    up to max(N_s, N_e) + 2.

    Precision: sums inside a segment are float32, so rounding grows with the updates between two evaluations: relative
    errors of about 2e-7 at 100 updates, 1e-6 at 1,000 (weights that hardly move: 1e-6 and 7e-6).

    Threads: an average has no lock. Another thread may read it only while no update or evaluation is made.

    If the loss never converges, the average is everything since the best evaluation (`reference`: the last segment),
    and reading it warns (`NeverConvergedWarning`). When a model is trained from scratch, a plateau before the loss
    first falls can look like a valley. `Status.warning` says so later, and reading the average warns
    (`FalseStartWarning`); `valley=LossValley(start=N)` or `LossValley(restart=True)` avoids it. Other metrics than a
    loss: `LossValley(mode="max")`.

    Args:
        model: The model to follow.
        n_converge: N_s, the evaluations for which a loss must stay the lowest to be the start.
        n_tolerance: N_e, the evaluations in a row above the threshold that end the average. `math.inf` averages to the
            end of training: the ablation "without overfit".
        tolerance_ratio: r - 1, by how much the threshold exceeds the loss at the start: 0.3 for the paper's r = 1.3.
        semantics: The definition to follow: "paper" (Algorithm 1), "text" (section 3.2) or "reference" (the published
            code).
        valley: The detector with all its settings (`mode`, `tolerance`, `start`, `restart`, ...) as one object, instead
            of the arguments above and the next two.
        nonfinite: "raise" on a loss that is not finite, or "skip" that evaluation.
        interval: Average only every `interval`-th update from the start on: the ablation "without dense".
        buffers: "copy" keeps the buffers of the last averaged update; "average" averages floating-point buffers too.
        offload: Keep all sums but the open segment in pinned host memory.
        include: Name patterns of the tensors to average, also frozen ones. By default all trainable ones.
        exclude: Name patterns of tensors not to average.
        process_group: The processes that must agree on the observed loss. By default all.
    """

    def __init__(
        self,
        model: nn.Module,
        n_converge: int = 3,
        n_tolerance: float = 6,
        tolerance_ratio: float = 0.3,
        semantics: Semantics = "paper",
        *,
        valley: LossValley | None = None,
        nonfinite: Nonfinite = "raise",
        interval: int = 1,
        buffers: Buffers = "copy",
        offload: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        settings: dict[str, Any] = {
            "n_converge": n_converge,
            "n_tolerance": n_tolerance,
            "tolerance_ratio": tolerance_ratio,
            "semantics": semantics,
            "nonfinite": nonfinite,
            "interval": interval,
        }
        defaults = LossValley()
        changed = [name for name, value in settings.items() if value != getattr(defaults, name)]
        if valley is not None and changed:
            raise ValueError(f"valley has all settings of the detector, got also {', '.join(changed)}: set them there")
        super().__init__(
            model,
            LossValley(**settings) if valley is None else valley,
            buffers=buffers,
            offload=offload,
            include=include,
            exclude=exclude,
            process_group=process_group,
        )
