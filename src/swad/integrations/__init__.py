"""Averages inside other training loops. Each module loads its package only when it is imported.

from swad.integrations.lightning import AverageCallback, SWADCallback       # lightning.pytorch.Trainer
from swad.integrations.transformers import AverageCallback, SWADCallback    # transformers.Trainer
from swad.integrations.timm import ModelSwad                                # a timm training script

`swad.averaged_weights` reads the averaged weights out of their checkpoints.
"""
