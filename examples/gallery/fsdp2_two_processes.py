"""
FSDP2: EMA and SWAD on two processes
====================================

With FSDP2 every process holds a share of the parameters, of the optimizer state, and of the averages: they are sharded
as the model is. The lines in the loop are those of one process. This script starts two processes on the CPU by itself;
on GPUs start your training with ``torchrun --nproc-per-node=8 train.py``.

Run it with ``python examples/gallery/fsdp2_two_processes.py``.
"""

# sphinx_gallery_thumbnail_path = "gallery/tiles/fsdp2_two_processes.png"
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import swad
from swad.averaging import distributed_checkpoint

# %%
# What every process does
# -----------------------
# Build the averages after ``fully_shard``. A `swad.AverageGroup` follows the training once for all its averages. All
# processes must observe the same loss, so each validates its share of the images, and the losses are averaged.


def train() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(4)  # the same initial weights and the same split in every process
    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    images = (images / 16).float()
    order = torch.randperm(len(images))
    train_part, val_part, test = order[:200], order[200:600].chunk(world_size)[rank], order[600:]
    noisy = images[test] + 0.3 * torch.randn(len(test), 64)

    layers = nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    model = nn.Sequential(*layers)
    mesh = dist.init_device_mesh("cpu", (world_size,))
    for layer in (*model[::2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    members = {"swad": swad.SWAD(model), "ema": swad.EMA(model, decay=0.99)}
    averages = swad.AverageGroup(model, members)

    random = torch.Generator().manual_seed(rank)  # every process draws other images
    for step in range(1, 201):
        batch = train_part[torch.randint(len(train_part), (4,), generator=random)]
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        averages.update_parameters(model)
        if step % 10 == 0:
            with torch.no_grad():
                val_loss = cross_entropy(model(images[val_part]), labels[val_part])
            dist.all_reduce(val_loss)
            averages.observe(val_loss / world_size)

    # A distributed checkpoint: every process writes its share, and it loads on another number of processes, too.
    with tempfile.TemporaryDirectory() as folder:
        folders = [folder]
        dist.broadcast_object_list(folders)
        distributed_checkpoint.save(averages, folders[0])
        distributed_checkpoint.load(averages, folders[0])
        dist.barrier()

    @torch.no_grad()
    def accuracy() -> float:
        return (model(noisy).argmax(1) == labels[test]).float().mean().item()

    accuracies = {"live weights": accuracy()}
    for name, average in averages.items():
        with average.average_parameters(model):
            accuracies[name] = accuracy()
    weight = averages["swad"].averaged_state()["0.weight"]
    status = averages["swad"].status
    if rank == 0:
        shard, whole = tuple(weight.to_local().shape), tuple(weight.shape)
        print(f"rank 0 of {world_size} holds {shard} of the weights {whole}")
        print(f"SWAD averaged {status.n_averaged} steps, {status.start_step} to {status.end_step}")
        for name, value in accuracies.items():
            print(f"{name:12}  {value:.1%} on noisy scans")
    dist.destroy_process_group()


# %%
# Two processes
# -------------
# In a process that ``torchrun`` started, the script trains. Started by you, it starts ``torchrun`` with itself.

if "RANK" in os.environ:
    train()
else:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*torchrun, sys.argv[0]], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr)
    print(done.stdout)
