"""The script of the two processes that test_lightning.py starts; each writes its results at the end."""

import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from helpers.lightning_parts import OPTIONS, KeepAll, Net, loader
from swad import EMA
from swad.integrations.lightning import AverageCallback, SWADCallback


class Synced(Net):
    """Logs a loss that differs between the ranks, and is the scripted one when averaged over them."""

    sync_dist = True

    def log(self, name, value, **options):
        if name == "val_loss":
            value = torch.tensor(value + 0.1 * (2 * self.global_rank - 1))
            options["sync_dist"] = self.sync_dist
        super().log(name, value, **options)


class Unsynced(Synced):
    sync_dist = False


class Sharded(Synced):
    """FSDP2 shards over the ranks; no batch norm, whose buffers differ between them."""

    def __init__(self, **options):
        super().__init__(norm=False, **options)

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        if not hasattr(self.net[0], "unshard"):
            for layer in (self.net[0], self.net[3]):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


class KeepWhole(KeepAll):
    def on_train_batch_end(self, trainer, module, *_):
        self.kept[trainer.global_step] = {k: whole(v) for k, v in module.state_dict().items()}


def fit(model_class, folder, ckpt_path=None):
    pl.seed_everything(0, verbose=False)
    strategy = DDPStrategy(process_group_backend="gloo")
    if model_class is Sharded:
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    keep, callback, model = KeepWhole(), SWADCallback(**OPTIONS), model_class(dropout=0)
    callbacks = [keep, callback]
    if folder is not None and ckpt_path is None:
        callbacks.append(ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, every_n_epochs=1))
    trainer = pl.Trainer(
        max_epochs=8,
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        callbacks=callbacks,
        enable_checkpointing=len(callbacks) > 2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, loader(8), loader(2), ckpt_path=ckpt_path)
    status = callback.status
    return trainer.global_rank, {
        "range": [status.start_step, status.end_step],
        "model": {k: whole(v) for k, v in model.state_dict().items()},
        "twin": keep.average(status.spans) if ckpt_path is None else {},
    }


class KeepLive(KeepWhole):
    """Keeps what the checkpoint callbacks see, too."""

    def on_validation_start(self, trainer, module):
        self.validated = {k: whole(v) for k, v in module.state_dict().items()}


def evaluate_average(folder, ckpt_path=None):
    """Validate and save an EMA of a sharded model."""
    pl.seed_everything(0, verbose=False)
    keep, callback = KeepLive(), AverageCallback(EMA, decay=0.8, evaluate="average", apply_at_end=False)
    saver = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, every_n_epochs=1)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        callbacks=[callback, keep, saver] if ckpt_path is None else [callback, keep],
        enable_checkpointing=ckpt_path is None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    model = Sharded(dropout=0)
    trainer.fit(model, loader(8), loader(2), ckpt_path=ckpt_path)
    averaged = {k: whole(v) for k, v in callback.averaged_state().items()}
    return {"kept": keep.kept, "validated": keep.validated, "averaged": averaged}


if __name__ == "__main__":
    results = {}
    for name, model_class in {"ddp": Synced, "fsdp2": Sharded}.items():
        folder = Path(sys.argv[1], name)
        rank, results[name] = fit(model_class, folder)
        rank, results[f"{name} resumed"] = fit(model_class, folder, ckpt_path=folder / "epoch=3.ckpt")
    folder = Path(sys.argv[1], "ema")
    results["ema"] = evaluate_average(folder)
    results["ema resumed"] = evaluate_average(folder, ckpt_path=folder / "epoch=1.ckpt")
    try:
        fit(Unsynced, None)
    except ValueError as error:
        results["unsynced"] = str(error)
    torch.save(results, Path(sys.argv[1], f"{rank}.pt"))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # no rank exits while another still needs it
    os._exit(0)  # torch sometimes aborts while it stops its threads, after everything that is tested
