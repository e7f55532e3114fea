"""The recipe for training on one large dataset from scratch: ImageNet's, as in appendix B.6 of the paper.

SGD with momentum, a learning rate in proportion to the batch, warm-up and polynomial decay, epochs without replacement,
batch norms that are trained. A run follows one of three learning rates (`lr_schedule`):

decay:    down to zero at the end of training. This is ERM.
constant: down to a twentieth after 80 % of training, then constant. SWAD averages every update of the last 20 %.
cyclic:   the same, then cycles of 3 epochs. SWA averages the end of each cycle.

The paper does not give the power of the decay, the weight decay or the bounds of the cycles. Here they are 1, 1e-4, and
the constant rate and a twentieth of it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

IMAGENET = "imagenet"
"""The name of the recipe."""
LRSchedule = Literal["constant", "cyclic", "decay"]
SCHEDULES: tuple[LRSchedule, ...] = get_args(LRSchedule)

EPOCHS = 90
WARMUP_EPOCHS = 5
CYCLE_EPOCHS = 3
LR_BATCH = 256
"""Images in the batch for which the learning rate is given. It grows in proportion to the batch: Goyal et al.,
"Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017."""
LOW = 1 / 20
"""The learning rate after 80 % of training, as a share of the highest."""
MICRO_BATCH = 256
"""Images in one forward pass, over which batch norms compute their statistics."""
HYPERPARAMETERS = {"lr": 0.1, "batch_size": 2048, "weight_decay": 1e-4}
AUGMENTATION = {"crop": 0.08, "flip": 0.5, "jitter": 0.0, "grayscale": 0.0}
"""Crops of 8 to 100 % of the area, and flips."""
SETTINGS: dict[str, Any] = {
    "optimizer": "sgd",
    "weights": "random",
    "freeze_bn": False,
    "input_pipeline": "torchvision",
    "augmentation": AUGMENTATION,
}
"""The settings of a run for which its own say nothing."""
AVERAGES: dict[LRSchedule, tuple[str, ...]] = {
    "decay": ("ema",),
    "constant": ("without_opt_overfit:as=swad",),
    "cyclic": ("swa",),
}
"""The averages of each training. SWAD has a fixed window here, so it needs no validation loss."""


def scaled_epochs(epochs: float, of_90: float) -> float:
    """Return the length of a part of the recipe: its own epochs, or less in proportion if training is shorter.

    >>> scaled_epochs(90, 5), scaled_epochs(300, 5), scaled_epochs(9, 5)
    (5, 5, 0.5)
    """
    return min(of_90, epochs * of_90 / EPOCHS)
