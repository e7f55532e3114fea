"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
FigureFolder = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for figures. Default: RUN/figures.")]
FigureFormats = Annotated[str, typer.Option("--figure-formats", help="svg, pdf, png: one or several.")]
DataNow = Annotated[Path | None, typer.Option("--data", "-d", help="Where the data lies now, if not where it was.")]
Images = Annotated[int, typer.Option(help="Images of each domain, classes in proportion; 0: all.")]
Workers = Annotated[int | None, typer.Option(help="Processes that read images.")]
Select = Annotated[str, typer.Option("--select", help="iid, last, oracle, oracle_best_step or lodo.")]


def words(text: str) -> list[str]:
    """Words with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str) -> list[int]:
    """Whole numbers with commas."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"whole numbers with commas are needed, e.g. 0,1,2; got {text!r}") from None


def count(option: str, value: int, least: int) -> int:
    """The number, if it is large enough."""
    if value < least:
        raise ValueError(f"--{option} must be {least} or more, got {value}")
    return value


def pairs(directions: int) -> int:
    """Directions, which come in opposite pairs."""
    if directions < 4 or directions % 2:
        raise ValueError(
            "--directions must be an even number of 4 or more, as they come in pairs and one pair has no spread; "
            f"got {directions}"
        )
    return directions


def radii(text: str) -> list[float]:
    """Numbers with commas, or START:STOP:STEP with both ends."""
    try:
        if ":" in text:
            start, stop, step = (float(part) for part in text.split(":"))
            if not step > 0 or stop < start:
                raise ValueError
            return [start + step * k for k in range(int((stop - start) / step + 1e-9) + 1)]
        return [float(part) for part in words(text)]
    except (ValueError, OverflowError):
        raise ValueError(f"radii are numbers with commas or START:STOP:STEP, e.g. 0:60:5; got {text!r}") from None


def formats(text: str) -> list[str]:
    """Formats of figures."""
    found = words(text)
    if not found or any(one not in ("svg", "pdf", "png") for one in found):
        raise ValueError(f"--figure-formats is one or several of svg, pdf, png; got {text!r}")
    return found


def device(name: str) -> str:
    """The device by its name; auto is a GPU where there is one."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
