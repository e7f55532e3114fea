"""Rows of a flatness measurement: appended as they are computed, read back to go on.

A head holds the settings and the losses at the weights themselves. Every part after it holds a stretch of directions:
their mean losses, and for every image the sum over all directions so far. Numbers survive to the last bit.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swad.flatness._losses import Measured

Row = dict[str, Any]
Sink = Callable[[Row], None]
"""Takes one row of JSON-able values at a time, as they are computed."""
Progress = Callable[[int, int], None]
"""Takes evaluations done and evaluations in all."""

HEAD, PART = "flatness", "flatness-part"


class Tally:
    """Losses as they come, on their device; read once a part, so that the device never waits in between."""

    def __init__(self, base: Measured, radii: Sequence[float], before: Found | None, name: str | None) -> None:
        self.start = self.stop = before.stop if before else 0
        self._name, self._by_image, self._domains = name, base.by_image, list(base.losses)
        self._sizes = {domain: len(losses) for domain, losses in base.losses.items()}
        device = next(iter(base.losses.values())).device
        n = sum(self._sizes.values())
        self._sums = torch.zeros(len(radii), n, dtype=torch.float64, device=device)
        if before is not None and before.stop and self._by_image:
            self._sums.copy_(torch.cat([before.image_sums[domain] for domain in self._domains], 1))
        self._means: dict[int, list[Tensor]] = {}

    def add(self, number: int, radius: int, found: Measured) -> None:
        """Take the losses at direction `number` and the radius of that index."""
        sizes = {domain: len(losses) for domain, losses in found.losses.items()}
        if sizes != self._sizes:
            raise ValueError(
                f"loss_fn must return the same domains and images every time; got {sizes} after {self._sizes}"
            )
        losses = [found.losses[domain].double() for domain in self._domains]
        self._means.setdefault(number, []).append(torch.stack([one.mean() for one in losses]))
        if self._by_image:  # direction after direction, so that a resumed sum rounds as an unbroken one
            self._sums[radius] += torch.cat(losses)

    def close(self, stop: int) -> Row:
        """The part since the last one, as a row."""
        table = torch.stack([torch.stack(self._means[k]) for k in range(self.start, stop)]).cpu()  # k, radius, domain
        losses = {domain: table[:, :, i] for i, domain in enumerate(self._domains)}
        sums = torch.split(self._sums.cpu(), list(self._sizes.values()), 1) if self._by_image else ()
        row = part_row(self._name, self.start, stop, losses, dict(zip(self._domains, sums, strict=False)))
        self.start, self._means = stop, {}
        return row


@dataclass(frozen=True)
class Found:
    """What rows read back hold: directions 0 to `stop`, without a gap."""

    head: Row
    stop: int
    losses: dict[str, Tensor]
    image_sums: dict[str, Tensor]

    def part(self) -> Row:
        """All of it as one part."""
        return part_row(self.head["model"], 0, self.stop, self.losses, self.image_sums)


def found_in(rows: Iterable[Row], model: str | None) -> Found | None:
    """Read the rows of one model; None where there are none."""
    head: Row | None = None
    stop = 0
    losses: dict[str, list[list[float]]] = {}
    image_sums: dict[str, str] = {}
    for row in rows:
        if row.get("model") != model or row.get("kind") not in (HEAD, PART):
            continue
        if row["kind"] == HEAD:
            if head is not None:
                require_same(head, row)
            head = head or row
        elif head is not None and row["first"] == stop:
            stop = row["stop"]
            for domain, values in row["losses"].items():
                losses.setdefault(domain, []).extend(values)
            image_sums = row["image_sums"]  # running sums: the last ones hold all
    if head is None:
        return None
    tables = {
        domain: torch.tensor([[float(value) for value in one] for one in losses.get(domain, [])], dtype=torch.float64)
        for domain in head["loss"]
    }
    radii = len(head["radii"])
    return Found(head, stop, tables, {domain: unpacked(text).view(radii, -1) for domain, text in image_sums.items()})


def part_row(
    model: str | None, first: int, stop: int, losses: Mapping[str, Tensor], image_sums: Mapping[str, Tensor]
) -> Row:
    """Directions `first` to `stop` as a row: mean losses (directions x radii), and image sums (radii x images)."""
    return {
        "kind": PART,
        "model": model,
        "first": first,
        "stop": stop,
        "losses": {
            domain: [[plain(value) for value in values] for values in table.tolist()]
            for domain, table in losses.items()
        },
        "image_sums": {domain: packed(sums) for domain, sums in image_sums.items()},
    }


def require_same(old: Row, new: Row) -> None:
    """Refuse to go on with rows of other settings, weights or images."""
    for key in ("radii", "antithetic", "named"):
        if old[key] != new[key]:
            raise ValueError(f"the rows to go on with have {key} {old[key]}, not {new[key]}: start a new file")
    for key, value in new["settings"].items():
        was = old["settings"].get(key)
        same = math.isclose(was, value, rel_tol=1e-6) if key == "norm" else was == value
        if not same:
            what = "are of other weights: norm" if key == "norm" else f"have {key}"
            raise ValueError(f"the rows to go on with {what} {was!r}, not {value!r}: start a new file")
    sizes = [{domain: len(text) for domain, text in row["image_loss"].items()} for row in (old, new)]
    if list(old["loss"]) != list(new["loss"]) or sizes[0] != sizes[1]:
        raise ValueError("the rows to go on with are of other domains or another number of images: start a new file")
    for domain, value in new["loss"].items():
        was, now = float(old["loss"][domain]), float(value)
        if math.isfinite(was) and not math.isclose(was, now, rel_tol=1e-3, abs_tol=1e-6):
            raise ValueError(
                f"the rows to go on with have loss {was:.6g} on {domain}, not {now:.6g}, so they are of other images "
                "or another model: start a new file"
            )


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def packed(values: Tensor) -> str:
    """Doubles as text, to the last bit."""
    return base64.b64encode(array("d", values.detach().double().flatten().tolist()).tobytes()).decode()


def unpacked(text: str) -> Tensor:
    """What `packed` packed, in one row."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float64)
