"""Turn failures that a user can act on into one line: no memory, a lost process, an error in an own algorithm."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path

from swad.testbed.algorithms.base import Algorithm
from swad.testbed.training.config import ResolvedConfig
from swad.testbed.training.distributed import launched
from swad.testbed.training.run_dir import RunError
from swad.util.names import one_line

_PACKAGE = Path(__file__).parents[2]
_LOST = (
    "connection closed by peer", "connection reset by peer", "connection was likely closed", "broken pipe",
    "remote process exit",
)  # fmt: skip


class LostProcessError(RunError):
    """Another process of the run ended."""


def explain(error: Exception, config: ResolvedConfig, algorithm: type[Algorithm]) -> RunError | None:
    """Return a one-line error for a failure of a run; None if the error should be raised unchanged.

    Args:
        error: The error that ended the run.
        config: Settings of the run.
        algorithm: The class of its algorithm.
    """
    if type(error).__module__.startswith("swad."):
        return None  # written for users already
    text, hyperparameters = str(error).lower(), config.hyperparameters
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        batch_size = hyperparameters.get("batch_size")
        device = config.device if "cuda" in text else "the host"
        advice = f"lower batch_size (it is {batch_size}), use a smaller network or image_size, or fewer workers"
        return RunError(f"{config.output}: out of memory on {device}; {advice}, then run the command again")
    if "in dataloader worker process" in text:  # an exception there, with its traceback as text
        reason = str(error).strip().splitlines()[-1]
        return RunError(f"{config.output}: loading images failed with {reason}; SWAD_TRACEBACK=1 shows where")
    if "dataloader worker" in text:
        return RunError(
            f"{config.output}: a process that loads images was killed, probably because memory ran out; "
            f"lower workers (--workers) or batch_size, then run the command again to resume"
        )
    rank, world_size = launched()
    if world_size > 1 and any(phrase in text for phrase in _LOST):
        return LostProcessError(
            f"{config.output}: another process of this run ended, so rank {rank} stops; see the first error in the "
            "log, then run the command again to resume"
        )
    return _own_algorithm_error(error, config, algorithm)


def _own_algorithm_error(error: Exception, config: ResolvedConfig, algorithm: type[Algorithm]) -> RunError | None:
    """Name the line of the user's algorithm in which an error occurred; None if it was not in one."""
    files = {_file(cls) for cls in algorithm.__mro__ if not cls.__module__.startswith("torch.")}
    files |= set(algorithm.own_files)
    own = {file for file in files if file is not None and _PACKAGE not in Path(file).parents}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    if not frames:
        return None
    frame = frames[-1]
    return RunError(
        f"{config.algorithm} failed with {type(error).__name__}: {one_line(error, 200)} ({frame.filename}, "
        f"line {frame.lineno}, in {frame.name}); set SWAD_TRACEBACK=1 to see the traceback"
    )


def _file(cls: type) -> str | None:
    try:
        return inspect.getsourcefile(cls)
    except (TypeError, OSError):  # built-in classes
        return None
