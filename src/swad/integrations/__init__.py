"""Averages inside other training loops. Each module loads its package only when it is imported.

from swad.integrations.lightning import SWADCallback       # lightning.pytorch.Trainer
from swad.integrations.transformers import SWADCallback    # transformers.Trainer
from swad.integrations.timm import ModelSwad               # a timm training script
"""
