"""A small training with checkpoints, run by test_group: `python killed_training.py FOLDER [KILL_AFTER]`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from swad import EMA, SWAD, AverageGroup


def main() -> None:
    folder = Path(sys.argv[1])
    kill_after = int(sys.argv[2]) if len(sys.argv) > 2 else None
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    group = AverageGroup(model, {"swad": SWAD(model), "ref": SWAD(model, semantics="reference"), "ema": EMA(model)})
    file, start = folder / "checkpoint.pt", 0
    if file.exists():
        state = torch.load(file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        group.load_state_dict(state["group"])
        start = state["step"]
        print("resumed", start)
    for step in range(start + 1, 41):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - x[:, :2].sin()).square().mean().backward()
        optimizer.step()
        group.update_parameters(model)
        if step % 5 == 0:
            group.observe(1 + abs(step - 12) / 60)
        if step % 3 == 0:  # also in the middle of segments
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "group": group.state_dict(),
                    "step": step,
                },
                file.with_suffix(".partial"),
            )
            os.replace(file.with_suffix(".partial"), file)
        if step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
    average = {
        f"{name}.{key}": value for name, member in group.items() for key, value in member.averaged_state().items()
    }
    spans = {name: [str(s) for s in member.status.spans] for name, member in group.items()}
    torch.save({"model": model.state_dict(), "average": average, "spans": spans}, folder / "final.pt")


if __name__ == "__main__":
    main()
