"""Scripts in processes of their own that start at once, from a server that has imported torch and the like before.

For processes that tests kill, limit or connect with each other, and for commands whose start is tested elsewhere. The
package itself is imported anew in each process, because some of it depends on the environment.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "matplotlib.figure",
        "rich.progress",
        "safetensors.torch",
        "torch._dynamo",  # imported by the first step of an optimizer, and slower than torch itself
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "typer",
    ]
)


class Process:
    """A script, code or module that runs now.

    Args:
        command: What follows `python` on the command line: a script, `-c` and code or `-m` and a module, and arguments.
        env: The environment. Default: that of the tests.
        cwd: The working directory. Default: that of the tests.
        quick_workers: Whether the workers of a command come from the same server. They have the environment of the
            tests, and are in another process group, so Ctrl-C does not reach them.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        quick_workers: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="swad-process-")
        self._files = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        arguments = (list(map(str, command)), dict(os.environ if env is None else env), cwd or Path.cwd(), self._files)
        forkserver.ensure_running()
        server = _server_state() if quick_workers else None
        self._process = CONTEXT.Process(target=_run, args=(*arguments, server))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """Wait for the end, and return what was written to stdout and stderr."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            self._process.join()
        with self._folder:
            out, errors = (file.read_text() if file.exists() else "" for file in self._files)
        return out, errors


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script, code or module to its end."""
    process = Process(command, env=env, cwd=cwd)
    out, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode or 0, out, errors)


def run_ranks(command: Sequence[str | Path], world: int = 2) -> list[str]:
    """Run a script as `torchrun` would on this machine's CPU, and return what each rank wrote to stdout."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # With one visible GPU, FSDP2 would put its mesh there.
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    processes = [Process(command, env={**os.environ, **shared, **variables}) for variables in own]
    outputs = [process.communicate() for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    return [out for out, _ in outputs]


def _server_state() -> dict[str, Any]:
    """What a client of the server knows of it; multiprocessing has no public way to share one."""
    state = vars(forkserver._forkserver)
    return {name: state[name] for name in ("_forkserver_address", "_forkserver_authkey") if name in state}


def _run(command: list[str], env: dict[str, str], cwd: Path, files: list[Path], server: dict[str, Any] | None) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    multiprocessing.set_start_method(None, force=True)  # of processes that this one starts: the default
    if server is not None:
        from swad.testbed.workers import local

        local.PROCESSES = CONTEXT
        vars(forkserver._forkserver).update(server, ensure_running=resource_tracker.ensure_running)
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(command[1], {"__name__": "__main__"})
    elif command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
