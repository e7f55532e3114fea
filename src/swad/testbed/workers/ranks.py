"""Train one run in several processes: the worker is rank 0, and the other ranks live as long as the run.

To its worker such a run is like any other. Rank 0 holds the claim, writes every file and takes the signals, upon which
all ranks stop at the same step. If another rank is killed, rank 0 ends itself as if it had been killed, and the run is
resumed like every run whose process was killed. An error of another rank is an error of the run.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from swad.testbed.results.failures import write_failure
from swad.testbed.training.config import RunConfig
from swad.testbed.training.run_dir import RunError
from swad.testbed.workers.work import INTERRUPTED, Train, describe, leave_broken_device
from swad.util.signals import Interrupted

GRACE_SECONDS = 30.0
"""How long rank 0 may take to end after another rank has failed, before it is ended: it may wait for that rank."""

KILL_SECONDS = 5.0
"""How long a rank may take to end when rank 0 closes its stdin, which forked children of rank 0 may hold open."""

ERROR = "error"
"""Key of the first error of another rank, in the store where the ranks meet."""


class Rank(Protocol):
    """Another rank, or several that end together."""

    def wait(self) -> int:
        """Wait for the end, and return the exit status."""

    def kill(self) -> None:
        """End it. It writes no files, so it may be in the middle of anything."""


@dataclass(frozen=True)
class Share:
    """What another rank needs to train its share of a run.

    Args:
        config: The run.
        train: Function that trains it.
        threads: CPU threads of each rank.
        variables: Those of torchrun's environment variables that are the same in all ranks.
    """

    config: RunConfig
    train: Train | None
    threads: int
    variables: Mapping[str, str]

    def run(self, rank: int, local_rank: int) -> int:
        """Train as one rank, and return the exit status."""
        import torch
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        from swad.testbed.training import loop
        from swad.testbed.training.errors import LostProcessError

        torch.set_num_threads(self.threads)
        try:
            with _environment(self.variables, rank, local_rank):
                (self.train or loop.train)(self.config)
        except LostProcessError:  # what ended the other process is the error
            return 0
        except (Interrupted, KeyboardInterrupt):
            return INTERRUPTED
        except Exception as error:
            leave_broken_device(self.config.output, error)
            store = TCPStore(self.variables["MASTER_ADDR"], int(self.variables["MASTER_PORT"]), is_master=False)
            store.compare_set(ERROR, "", json.dumps([f"rank {rank}: {describe(error)}", traceback.format_exc()]))
            return 1
        return 0


Start = Callable[[Share], Sequence[Rank]]
"""Starts the other ranks of a run."""


def start_here(share: Share) -> list[Rank]:
    """Start the other ranks on this machine."""
    n = int(share.variables["WORLD_SIZE"])
    command = [sys.executable, "-m", __name__]
    return [RankProcess(command, share, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(1, n)]


class RankProcess(subprocess.Popen[bytes]):
    """A command that calls `main`. It ends with this process, however this process ends."""

    stdin: IO[bytes]

    def __init__(self, command: Sequence[str], share: Share, **variables: str) -> None:
        # A session of its own: of the signals of a terminal, those to rank 0 suffice.
        inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
        environment = {**inherited, **variables}
        super().__init__(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        with suppress(BrokenPipeError):  # it has ended, which `wait` tells
            pickle.dump(share, self.stdin)
            self.stdin.flush()

    def kill(self) -> None:
        """End it: by the end of its stdin, which srun passes on to other nodes, and a signal if that does not reach."""
        with suppress(OSError):
            self.stdin.close()
        try:
            self.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            super().kill()


def main() -> int:
    """Train the share of a run that stdin contains, and end early when stdin does: rank 0 has ended."""
    share: Share = pickle.load(sys.stdin.buffer)
    threading.Thread(target=lambda: os.read(0, 1) or os._exit(0), daemon=True).start()
    if "RANK" in os.environ:
        return share.run(int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]))
    import torch

    rank = int(os.environ["SLURM_PROCID"])  # started by srun, which may let a task see one GPU only, or all of its node
    local_rank = int(os.environ["SLURM_LOCALID"]) % max(1, torch.cuda.device_count())
    return share.run(rank, local_rank) if rank > 0 else 0  # the worker is rank 0


def in_ranks(train: Train | None, processes: int, **where: Any) -> Train | None:
    """Return what trains a run in so many processes; see `train_in_ranks` for `where`."""
    return train if processes == 1 else partial(train_in_ranks, train=train, processes=processes, **where)


def train_in_ranks(
    config: RunConfig,
    *,
    train: Train | None,
    processes: int,
    nodes: int = 1,
    host: str = "127.0.0.1",
    start: Start = start_here,
) -> Any:
    """Train a run in several processes, of which this one is rank 0, and return its result.

    Args:
        config: The run.
        train: Function that trains it, in every process. Default: `swad.testbed.training.loop.train`.
        processes: How many.
        nodes: The number of machines that they are on, as far as it is known.
        host: Name or address of this machine for the other ranks.
        start: Starts the other ranks.
    """
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from swad.testbed.training import loop
    from swad.testbed.training.errors import LostProcessError

    # It finds a free port and keeps it; the process group of rank 0 uses the server that is there.
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    variables = {"MASTER_ADDR": host, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(processes)}
    variables["LOCAL_WORLD_SIZE"] = str(-(-processes // nodes))
    others = _Others(store, config.output)
    try:
        others.watch(start(Share(config, train, torch.get_num_threads(), variables)))
        with _environment(variables, 0, 0):
            return (train or loop.train)(config)
    except LostProcessError as lost:
        if others.error() is None:
            time.sleep(GRACE_SECONDS)  # a rank was killed, and this process ends meanwhile
        raise others.error() or lost from None
    finally:
        others.end()


class _Others:
    """The other ranks of a run, as rank 0 sees them.

    Args:
        store: Where the ranks meet.
        run_dir: Directory of the run.
    """

    def __init__(self, store: Any, run_dir: Path) -> None:
        self._store, self._run_dir = store, run_dir
        self._ranks: Sequence[Rank] = ()
        self._ended = threading.Event()

    def watch(self, ranks: Sequence[Rank]) -> None:
        """End this process if one of the ranks is lost."""
        self._ranks = ranks
        for rank in ranks:  # in this context, which guards the writes of the run
            threading.Thread(target=copy_context().run, args=(self._watch, rank), daemon=True).start()

    def end(self) -> None:
        """End the ranks, which have nothing left to do."""
        self._ended.set()
        for rank in self._ranks:
            rank.kill()

    def error(self) -> RunError | None:
        """Return the first error of another rank, if there is one."""
        if not self._store.check([ERROR]):
            return None
        message, lines = json.loads(self._store.get(ERROR))
        error = RunError(message)
        error.add_note(lines)
        return error

    def _watch(self, rank: Rank) -> None:
        """Wait for a rank, and end this process if the rank was killed, or failed and this one waits for it."""
        if (status := rank.wait()) == 0 or self._ended.is_set():
            return
        error = self.error()
        if self._ended.wait(GRACE_SECONDS if error is not None or status == INTERRUPTED else 0):
            return
        if error is not None:
            with suppress(Exception):  # whatever prevents it, this process must end
                write_failure(self._run_dir, str(error), error.__notes__[0].splitlines())
        print(f"{self._run_dir}: {error or 'another rank was killed'}; so rank 0 ends too", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _environment(variables: Mapping[str, str], rank: int, local_rank: int) -> Iterator[None]:
    """Set torchrun's variables for the block."""
    ours = {**variables, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


if __name__ == "__main__":
    sys.exit(main())
