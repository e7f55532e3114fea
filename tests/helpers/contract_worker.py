"""Make the first steps of algorithms, alone or as one of several processes: `contract_worker.py FOLDER NAMES`."""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from helpers.tiny_algorithms import batch_for, make, quick, tell, update
from swad.testbed.algorithms.base import Batch, StepContext
from swad.testbed.algorithms.registry import get_algorithm
from swad.testbed.training.distributed import Dist, process_group

STEPS = 2
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "accumulated": ("erm", {"n_parts": 2, "dropout": 0.0}),
    "accumulated sgd": ("erm", {"n_parts": 2, "dropout": 0.0, "optimizer": "sgd"}),
}
"""Further ways to compute the steps: the algorithm, and options of `first_steps`."""


def first_steps(
    name: str,
    dist: Dist | None = None,
    n_parts: int = 1,
    dropout: float = 0.5,
    optimizer: str = "adam",
) -> dict[str, Any]:
    """Return the losses of the first steps and the state after them; with `dist`, on this rank's shard.

    With several parts, the gradients of each step are accumulated over them.
    """
    fields = {field.name for field in dataclasses.fields(get_algorithm(name).Hyperparameters)}
    # Annealing, or a preparation, of one step covers both phases.
    wanted = {"anneal": 1, "preparation": 0.1}
    options = {field: value for field, value in wanted.items() if field in fields} | quick(name)
    algorithm = make(name, dropout=dropout, lr=0.1, **options)
    tell(algorithm, optimizer=optimizer)
    ctx = StepContext()
    if dist is not None:
        groups = algorithm.n_domains
        tell(algorithm, gather=partial(dist.gather, groups), local_shard=partial(dist.local_shard, groups))
        ctx = dist.step_context(algorithm, n_parts=n_parts)
    for made in algorithm.optimizers.values():
        for group in made.param_groups:
            # Adam hides gradients that are wrong by a factor, and amplifies the rounding of tiny ones.
            group["eps"] = 0.1
    losses = []
    for step in range(1, STEPS + 1):
        batch = batch_for(algorithm, step)
        if algorithm.views > 1:
            images = torch.stack([algorithm.local_shard(view) for view in batch.images])
        else:
            images = algorithm.local_shard(batch.images)
        batch = batch._replace(images=images, labels=algorithm.local_shard(batch.labels))
        if n_parts == 1:
            losses.append(update(algorithm, batch, ctx))
        else:
            rows = [part.flatten(0, 1) for part in algorithm.by_domain(batch.images).chunk(n_parts, 1)]
            labels = [part.flatten() for part in algorithm.by_domain(batch.labels).chunk(n_parts, 1)]
            parts = [Batch(step, *each) for each in zip(rows, labels, strict=True)]
            losses.append(algorithm.accumulate(parts, n_parts, ctx))
    if dist is not None:
        dist.average(losses)
    parallel = ctx.data_parallel is not None
    return {"losses": torch.stack(losses), "state": algorithm.state_dict(), "data_parallel": parallel}


def main() -> None:
    torch.set_num_threads(1)
    with process_group("cpu") as dist:
        results = {name: first_steps(name, dist) for name in json.loads(sys.argv[2])}
        results |= {name: first_steps(algorithm, dist, **options) for name, (algorithm, options) in OTHERS.items()}
        torch.save(results, Path(sys.argv[1]) / f"{dist.rank}.pt")


if __name__ == "__main__":
    main()
