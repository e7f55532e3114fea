"""Why a run failed: one small file in its directory, which the next attempt replaces and success removes.

>>> import tempfile
>>> directory = tempfile.mkdtemp()
>>> _ = write_failure(directory, "out of memory on cuda", ["Traceback ...", "RuntimeError: CUDA out of memory"])
>>> failure = write_failure(directory, "out of memory on cuda")
>>> failure.attempts, read_failure(directory) == failure
(2, True)
>>> remove_failure(directory)
>>> read_failure(directory) is None
True
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from swad.util.files import read_json, write_json

FAILURE = "failure.json"

STARTS = "starts.json"
"""File of a run that a worker trains: how often it was started since its records last grew."""

RETRIED = "failure.retried.json"
"""The failure of a run that is trained again."""

LINES = 20
"""Lines of the traceback that are kept: the last ones."""


@dataclass(frozen=True)
class Failure:
    """The last failed attempt at a run.

    Args:
        error: The error, in one line.
        lines: The last lines of its traceback.
        attempts: How many attempts failed since the run last succeeded.
        host: Name of the machine.
        time: When it failed, in UTC.
    """

    error: str
    lines: tuple[str, ...] = ()
    attempts: int = 1
    host: str = ""
    time: str = ""

    @property
    def traceback(self) -> tuple[str, ...]:
        """The lines, if they say more than the error. One that was written for users says it all."""
        return () if self.lines and self.lines[-1].startswith("swad.") else self.lines


def write_failure(directory: str | os.PathLike[str], error: str, lines: Sequence[str] = ()) -> Failure:
    """Store why a run failed, and return it. The attempts before are counted.

    Args:
        directory: The run directory; it is created if it does not exist.
        error: The error; line breaks become spaces.
        lines: The traceback.
    """
    before = read_failure(directory) or _read(Path(directory) / RETRIED)
    failure = Failure(
        " ".join(error.split()),
        tuple(lines)[-LINES:],
        1 + (0 if before is None else before.attempts),
        socket.gethostname(),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_json(Path(directory) / FAILURE, dataclasses.asdict(failure))
    return failure


def read_failure(directory: str | os.PathLike[str]) -> Failure | None:
    """Return why the run in a directory failed; None if it did not."""
    return _read(Path(directory) / FAILURE)


def _read(path: Path) -> Failure | None:
    try:
        content = read_json(path)
        lines = tuple(str(line) for line in content["lines"])
        return Failure(
            str(content["error"]), lines, int(content["attempts"]), str(content["host"]), str(content["time"])
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, LookupError):
        # The run failed, whatever became of the file; one damaged file must not hide the state of a whole sweep.
        return Failure(f"{path} cannot be read")


def retry_failed(directory: str | os.PathLike[str]) -> None:
    """Let a failed run be trained again; its next failure counts the attempts before. Without one this does nothing."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.replace(Path(directory) / FAILURE, Path(directory) / RETRIED)


def remove_failure(directory: str | os.PathLike[str]) -> None:
    """Forget why a run failed and how often it was started; without a failure this does nothing."""
    for name in (FAILURE, RETRIED, STARTS):
        (Path(directory) / name).unlink(missing_ok=True)
