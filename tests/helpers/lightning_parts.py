"""Parts of a Lightning training."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OPTIONS = {"n_converge": 3, "n_tolerance": 2}

EVERY = 4  # batches per epoch, and steps per evaluation
LOSSES = [2.0, 1.0, 1.1, 1.2, 1.1, 3.0, 3.0, 3.0]  # the start is the second, the end the fifth, detected at the seventh


class Net(pl.LightningModule):
    """Trains on real gradients; its validation losses are given by step, so that the window is known."""

    def __init__(self, every=EVERY, dropout=0.5, norm=True):
        super().__init__()
        norms = nn.BatchNorm1d(8) if norm else nn.LayerNorm(8)
        self.net = nn.Sequential(nn.Linear(3, 8), norms, nn.Dropout(dropout), nn.Linear(8, 1))
        self.every = every

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).sub(1).square().mean()

    def validation_step(self, batch, batch_idx):
        done = self.global_step // self.every
        self.log("val_loss", LOSSES[done - 1] if done else 1e-9)
        self.log("magnitude", self.net(batch[0]).abs().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class KeepAll(Callback):
    """The slow twin: every weight after every step."""

    def __init__(self):
        self.kept = {}

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step not in self.kept:
            self.kept[trainer.global_step] = {k: v.clone() for k, v in module.state_dict().items()}

    def average(self, spans):
        updates = [i for span in spans for i in span.updates]
        last = self.kept[updates[-1]]
        return {
            k: torch.stack([self.kept[i][k].double() for i in updates]).mean(0).to(last[k].dtype)
            if k.endswith(("weight", "bias"))
            else last[k]
            for k in last
        }


def loader(n_batches=EVERY):
    data = torch.randn(4 * n_batches, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(data), batch_size=4)
