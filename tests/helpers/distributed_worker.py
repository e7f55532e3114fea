"""Run by tests of averages in gloo processes: `python distributed_worker.py SCENARIO FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import swad
import swad.averaging.distributed_checkpoint
from swad import EMA, SMA, SWAD, AverageGroup


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 7)  # 7 rows do not split evenly over two ranks
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Linear(7, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.first(x))))


class WithoutNorm(Net):
    """Batch statistics differ between ranks; without them two processes compute what one does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()


LOSSES = [3, 2, 1, 1.1, 1.2, 1.1, 5, 5, 5]


def run(model, averager, rank, world, steps, check=lambda step: None):
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for step in range(1, steps + 1):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step)).chunk(world)[rank]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        averager.update_parameters(model)
        if step % 4 == 0:
            with torch.no_grad():  # leaves FSDP's root gathered, as a validation does
                model(x)
            averager.observe(LOSSES[step // 4 - 1])
        check(step)
    return optimizer


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def ddp(rank, world, folder):
    model = nn.parallel.DistributedDataParallel(WithoutNorm())
    averager = SWAD(model, process_group=None)
    run(model, averager, rank, world, 36)
    state = averager.averaged_state()
    assert all(not name.startswith("module.") for name in state)
    alone = WithoutNorm()
    single = SWAD(alone)
    run(alone, single, 0, 1, 36)  # the whole batch in one process
    for name, value in single.averaged_state().items():
        torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-5)
    torch.save(state, folder / f"ddp{rank}.pt")


def fsdp(rank, world, folder):
    """Each rank averages only its shard; together they equal the mean of the gathered weights."""
    model = Net()
    fully_shard(model.first)
    fully_shard(model)
    averager = SWAD(model, n_converge=2, n_tolerance=2)
    kept: list[dict[str, torch.Tensor]] = []
    run(
        model,
        averager,
        rank,
        world,
        36,
        check=lambda step: kept.append(
            {name: full(p).detach().clone() for name, p in averager.tracked.averaged.items()}
        ),
    )
    assert averager.status.should_stop
    shard = averager.sums.closed[0].values[0]
    assert shard.shape[0] in (3, 4), shard.shape  # 7 rows over two ranks, not gathered
    spans = averager.status.spans
    steps = [i for s in spans for i in s.updates]
    want = {name: torch.stack([kept[i - 1][name] for i in steps]).mean(0) for name in kept[0]}
    for name, value in averager.averaged_state().items():
        if name in want:
            torch.testing.assert_close(full(value), want[name])
    # Swapped in, the gathered parameters are the average's, also right after a forward left them gathered.
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(99))
    twin = Net()
    twin.load_state_dict({name: full(value) for name, value in averager.averaged_state().items()})
    model.eval()
    with torch.no_grad():
        live = model(x)
        with averager.average_parameters(model):
            torch.testing.assert_close(model(x), twin.eval()(x))
        torch.testing.assert_close(model(x), live)
        # Built, swapped and loaded while a forward has left the root gathered.
        gathered = Net()
        fully_shard(gathered)
        gathered.eval()(x)
        late = SWAD(gathered)
        assert isinstance(late.tracked.averaged["first.weight"], DTensor)
        gathered(x)
        with averager.average_parameters(gathered):
            torch.testing.assert_close(gathered(x), twin.eval()(x))


def group_checkpoint(rank, world, folder):
    """Save and load a group as a distributed checkpoint."""

    def make():
        model = Net()
        fully_shard(model)
        return model, AverageGroup(model, {"swad": SWAD(model), "sma": SMA(model, start=3), "ema": EMA(model)})

    model, group = make()
    run(model, group, rank, world, 22)
    swad.averaging.distributed_checkpoint.save(group, folder / "group")
    _, again = make()
    swad.averaging.distributed_checkpoint.load(again, folder / "group")
    for name in group:
        assert group[name].status == again[name].status
        for key, value in group[name].averaged_state().items():
            if "norm.running" not in key:  # a checkpoint keeps one rank's copy of tensors that every rank has in full
                assert torch.equal(full(value), full(again[name].averaged_state()[key])), (name, key)


def group_disagrees(rank, world, folder):
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    group = AverageGroup(model, {"swad": SWAD(model), "sma": SMA(model, start=0)})
    group.update_parameters(model)
    try:
        group.observe(float("nan") if rank else 1.0)
    except ValueError as error:
        assert "every rank must observe" in str(error)
    else:
        raise AssertionError("ranks that disagree must raise")
    group.observe(1.0)


def checkpoint(rank, world, folder):
    """Save in the middle of the window on two ranks; `resumed` continues on any number."""
    model = Net()
    fully_shard(model)
    averager = SWAD(model)
    optimizer = run(model, averager, rank, world, 22)
    swad.averaging.distributed_checkpoint.save(averager, folder / "dcp")
    if rank == 0:
        print("saved", averager.step, sum(len(part.sums()) for part in (averager.trajectory, averager.sums)))
    torch.save(
        {name: full(value).clone() for name, value in averager.averaged_state().items()}, folder / f"before{rank}.pt"
    )
    del optimizer


def resumed(rank, world, folder):
    model = Net()
    if world > 1:
        fully_shard(model)
    averager = SWAD(model)
    swad.averaging.distributed_checkpoint.load(averager, folder / "dcp")
    assert averager.step == 22
    before = torch.load(folder / "before0.pt", weights_only=True)
    for name, tensor in averager.tracked.averaged.items():
        torch.testing.assert_close(full(averager.averaged_state()[name]), before[name])
        assert tensor.shape == before[name].shape
    model.train()
    averager.update_parameters(model)
    averager.update_parameters(model)
    averager.observe(1.1)
    assert averager.status.end_step == 24


def disagree(rank, world, folder):
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    averager = SWAD(model)
    averager.update_parameters(model)
    for loss in (1.0 + 0.1 * rank, float("nan") if rank else 1.0):
        try:
            averager.observe(loss)
        except ValueError as error:
            assert "every rank must observe the same validation loss" in str(error)
        else:
            raise AssertionError("ranks that disagree must raise")
    averager.observe(1.0)


def main() -> None:
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[scenario](rank, world, folder)
    dist.barrier()  # no rank exits while another still needs it
    print("done", rank, flush=True)
    os._exit(0)  # torch sometimes aborts while it stops its threads, after everything that is tested


if __name__ == "__main__":
    main()
