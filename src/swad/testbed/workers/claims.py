"""Who trains which run: one small file per run in a directory that all workers share, on every file system.

    claims/3/3fa2c1d09b7e.1       claimed; the number grows when a worker takes the run over from one that died
    claims/3/3fa2c1d09b7e.done    finished; or .failed

Only one process can create a file (O_EXCL), also on network file systems whose locks do not work, do not reach other
machines, or do so without saying so. So a claim needs no lock. One listing shows what is left of 1/16 of the runs, so
a worker need not read the directories of runs. The files are hints about ended runs and the truth about claimed ones:
`done.json` and `failure.json` decide, and without workers the directory may be deleted.

A claim is stale when its heartbeat stands still for `LOOKS` looks that are `BEAT` seconds apart. Clocks are never
compared, so they may differ. Of an owner on the same machine the kernel tells sooner, by a lock, whether it died.
An owner that lost its claim, because it was stopped or cut off for too long, notices before its next write.

>>> import tempfile
>>> claims = Claims(Path(tempfile.mkdtemp()) / "claims")
>>> claim = claims.take("3fa2c1d09b7e")
>>> claims.take("3fa2c1d09b7e") is None
True
>>> claim.end(DONE)
>>> claim.release()
>>> claims.marks("3")
{'3fa2c1d09b7e': 'done'}
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import shutil
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from swad.util.files import atomic_write

BEAT, LOOKS = 10.0, 6
"""Seconds between two heartbeats, and how many looks must find the same one before its owner counts as dead.

NFS clients may show a file up to a minute late. Looks are counted, not seconds: after an outage of the file server, or
in an observer that was stopped itself, much time has passed and the owner had no chance to beat.
"""
DIGITS = 1
"""Runs are spread over 16 ** DIGITS directories by the digits of their names. All workers of a sweep must agree."""
DONE, FAILED = "done", "failed"
SHARDS = [f"{i:0{DIGITS}x}" for i in range(16**DIGITS)]

Mark = int | str
"""What the files of a run say: the number of its claim, `DONE` or `FAILED`."""


class ClaimLostError(RuntimeError):
    """Another worker has taken the run over: this process must not write to it any more."""


@dataclass(frozen=True)
class Claims:
    """The claims of all runs below the parent of `root`. Workers that share runs must use the same directory."""

    root: Path

    def name(self, run: Path) -> str:
        """Return the name of a run in this directory. It is the same wherever a machine mounts the file system."""
        return _name(str(run), str(self.root.parent))

    def marks(self, shard: str) -> dict[str, Mark]:
        """Return the marks of the runs whose names start with `shard`. Those without one were never claimed."""
        marks: dict[str, Mark] = {}
        for name, mark in _files(self.root / shard):
            before = marks.get(name, 0)
            if isinstance(before, int) and (isinstance(mark, str) or mark > before):
                marks[name] = mark
        return marks

    def all_marks(self) -> dict[str, Mark]:
        """Return the marks of all runs, from a few listings."""
        return {name: mark for shard in SHARDS for name, mark in self.marks(shard).items()}

    def held(self) -> dict[str, Path]:
        """Return the files of all claims whose runs have not ended, by the names of the runs."""
        return {name: self.path(name, mark) for name, mark in self.all_marks().items() if isinstance(mark, int)}

    def path(self, name: str, mark: Mark) -> Path:
        """Return the file of a run that says `mark`."""
        return self.root / name[:DIGITS] / f"{name}.{mark}"

    def take(self, name: str, after: int = 0, seen: bytes = b"") -> Claim | None:
        """Claim a run; None if another worker was faster.

        Args:
            name: The run.
            after: Number of a stale claim to take over.
            seen: What it contained when it was found stale: its owner may have returned since.
        """
        path = self.path(name, after + 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return None
        # A listing that was made before may be old: this number may have been used, and removed, meanwhile.
        others = [mark for other, mark in _files(path.parent) if other == name and mark != after + 1]
        newer = any(isinstance(mark, str) or mark > after for mark in others)
        if newer or (after and _read(self.path(name, after)) != seen):
            os.close(fd)
            path.unlink(missing_ok=True)
            return None
        for mark in others:  # from here on its owner, should it return, finds that it lost the run
            self.path(name, mark).unlink(missing_ok=True)
        return Claim(path, fd, after + 1)

    def forget_removed(self, directories: Mapping[str, Path], names: tuple[str, ...]) -> None:
        """Remove the marks of ended runs that have none of the files `names` any more, for all workers that follow.

        A user may have removed a run, or its failure, to train it again. It reads every directory, so commands call
        it once and workers never.
        """
        for shard in SHARDS:
            for name, mark in self.marks(shard).items():
                directory = directories.get(name)
                if isinstance(mark, str) and directory and not any((directory / file).exists() for file in names):
                    self.path(name, mark).unlink(missing_ok=True)


class Claim:
    """A run that this process has claimed. A thread shows that it lives until `release`."""

    def __init__(self, path: Path, fd: int, number: int) -> None:
        self.path, self.number, self._fd = path, number, fd
        self._owner = {"token": secrets.token_hex(8), "pid": os.getpid(), "machine": _machine()}
        self._owner["locked"] = _lock(fd)
        self._beat, self._stopped = 0, threading.Event()
        self._write_beat()
        _held.add(self)
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raise `ClaimLostError` if another worker has taken the run over. Opening a file asks the server on NFS."""
        if _parse(_read(self.path)).get("token") != self._owner["token"]:
            raise ClaimLostError(f"another worker took over the run of {self.path}")

    def end(self, mark: str) -> None:
        """Mark the run as `DONE` or `FAILED`, so that no worker reads its directory again."""
        self.require()
        self.path.with_suffix(f".{mark}").touch()

    def release(self) -> None:
        """Let others claim the run at once."""
        self._stopped.set()
        self._thread.join()  # else it could write to another file that gets the number of the closed one
        with suppress(ClaimLostError):
            self.require()
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file, without a word to others."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _keep_beating(self) -> None:
        while not self._stopped.wait(BEAT):
            with suppress(ClaimLostError, OSError):  # the training notices a loss before its next write
                self.require()
                self._write_beat()

    def _write_beat(self) -> None:
        self._beat += 1
        # To the file that this process created, whatever has its name now. Forced out, as other machines must see it.
        os.pwrite(self._fd, json.dumps({**self._owner, "beat": f"{self._beat:08}"}).encode(), 0)
        os.fsync(self._fd)


class Watcher:
    """Finds out whether the owners of claims live. It remembers what it saw, so each worker and command needs one."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[bytes, int, float]] = {}

    def is_alive(self, path: Path) -> tuple[bool | None, bytes]:
        """Return whether the owner of a claim lives (None: look again after `BEAT` seconds), and its content."""
        content, now = _read(path), time.monotonic()
        if (locked := _is_locked(path, content)) is not None:
            return locked, content
        before, looks, last = self._seen.get(path, (None, 0, now))
        if content != before:
            self._seen[path] = content, 0, now
            return (None if before is None else True), content
        if now - last >= BEAT:
            looks, last = looks + 1, now
            self._seen[path] = content, looks, last
        return (False if looks >= LOOKS else None), content


def detach(path: Path) -> None:
    """Replace a file by a copy, so that a write of its former owner that is still under way changes nothing."""
    with suppress(FileNotFoundError), atomic_write(path) as partial:
        shutil.copyfile(path, partial)


def sample(claims: Mapping[str, int], kept: Mapping[str, Any], size: int = 16) -> dict[str, int]:
    """Choose which claims to watch: those that were watched before, and others at random.

    Some suffice, although a worker ends when all that it watches are alive: the last workers to end have fewer than
    `size` living owners beside them, so they watch every dead one or take over those that they do watch.
    """
    names = [name for name in claims if name in kept]
    others = [name for name in claims if name not in kept]
    names += random.sample(others, min(len(others), max(0, size - len(names))))
    return {name: claims[name] for name in names}


@cache  # commands ask for the names of all runs twice a second
def _name(run: str, folder: str) -> str:
    return hashlib.sha256(os.path.relpath(run, folder).encode()).hexdigest()[:12]


def _files(shard: Path) -> Iterator[tuple[str, Mark]]:
    try:
        entries = os.listdir(shard)
    except FileNotFoundError:
        return
    for entry in entries:
        name, _, mark = entry.partition(".")
        if mark.isdigit() or mark in (DONE, FAILED):  # not what a file system keeps beside a file that was removed
            yield name, int(mark) if mark.isdigit() else mark


def _read(path: Path) -> bytes:
    """Return what a claim contains; nothing where it was removed, also while it was open (ESTALE)."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parse(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {}


def _machine() -> str:
    """Return what two processes share only if they share a kernel, and with it the locks of files."""
    boot = ""
    with suppress(OSError):  # not Linux
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot}"


def _flock(fd: int, *, shared: bool) -> bool | None:
    """Lock an open file; return None where that is impossible."""
    try:
        import fcntl

        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _lock(fd: int) -> bool:
    return _flock(fd, shared=False) is True


def _is_locked(path: Path, content: bytes) -> bool | None:
    """Whether the owner of a claim holds its lock; None unless it locked the claim on this machine."""
    owner = _parse(content)
    if not owner.get("locked") or owner.get("machine") != _machine():
        return None
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        locked = _flock(fd, shared=True)
        return None if locked is None else not locked
    finally:
        os.close(fd)


# A forked child, such as a data loader's worker, inherits the lock and would hold it after its parent was killed.
_held: weakref.WeakSet[Claim] = weakref.WeakSet()


def _close_in_child() -> None:
    for claim in _held:
        claim.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
