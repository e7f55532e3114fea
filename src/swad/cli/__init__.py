"""The command line: one file per command, which parses, calls and prints.

Commands import what they need when they run, so that `swad --help` answers at once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

try:
    import typer
except ImportError:  # the library works without the commands
    sys.exit('the swad command needs extra packages: pip install "swad[vision,report]"')

from swad.cli import (
    algorithms,
    datasets,
    demo,
    doctor,
    export,
    log,
    measure,
    merge,
    predict,
    prune,
    report,
    reproduce,
    robustness,
    select,
    sweep,
    train,
)
from swad.cli._command import add_command
from swad.util.signals import Interrupted
from swad.util.terminal import protect_streams

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(
    help="Domain generalization by seeking flat minima: train with a domain held out, average the weights, report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with: swad demo",
)
add_command(app, demo.demo, demo.EXAMPLES)
add_command(app, train.train, train.EXAMPLES, suggest=train.suggest)
add_command(app, report.report, report.EXAMPLES)
add_command(app, select.select, select.EXAMPLES)
add_command(app, prune.prune, prune.EXAMPLES)
add_command(app, log.log, log.EXAMPLES)
add_command(app, robustness.robustness, robustness.EXAMPLES)
add_command(app, merge.merge, merge.EXAMPLES)
add_command(app, predict.predict, predict.EXAMPLES)
add_command(app, export.export, export.EXAMPLES)
add_command(app, reproduce.reproduce, reproduce.EXAMPLES)
add_command(app, doctor.doctor, doctor.EXAMPLES)
app.add_typer(measure.app, name="measure")
app.add_typer(sweep.app, name="sweep")
app.add_typer(datasets.app, name="datasets")
app.add_typer(algorithms.app, name="algorithms")


def _print_version(requested: bool) -> None:
    if requested:
        from swad.util.version import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command. Errors that the user can fix end in one line and exit code 1, an interrupt in code 130."""
    protect_streams()
    try:
        _run()
    finally:
        _flush()


def _run() -> None:
    interrupted = _record_sigint()
    try:
        os.getcwd()
    except FileNotFoundError:
        _print_error("error: the working directory was removed: change to another one, then run the same command again")
        sys.exit(1)
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        if ended.code == 130 and interrupted.is_set():  # typer turns Ctrl-C into this code without a word
            _print_error("Interrupted.")
        raise
    except KeyboardInterrupt:
        _print_error("Interrupted.")
        sys.exit(130)
    except Exception as error:
        if isinstance(error, Interrupted) or interrupted.is_set():
            _print_error(str(error) if isinstance(error, Interrupted) else "Interrupted.")
            sys.exit(130)
        missing_package = isinstance(error, ImportError) and "pip install" in str(error)
        for_users = any(base.__name__ in _USER_ERRORS for base in type(error).__mro__)
        if not (missing_package or for_users) or os.environ.get("SWAD_TRACEBACK"):
            raise
        text = _describe(error)
        _print_error(("error:\n" if text.startswith("- ") else "error: ") + text)  # several problems are a list
        sys.exit(1)


def _describe(error: Exception) -> str:
    """Return the message of an error; for a path that cannot be used, without the system's number and with advice."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"there is no {error.filename}: check the path"
    if isinstance(error, OSError) and error.filename is not None:
        from swad.util.files import disk_advice

        return f"cannot use {error.filename} ({error.strerror}): {disk_advice(error)}"
    return str(error)


_USER_ERRORS = {"ValueError", "OSError", "RunError", "RecordError", "WorkerError"}
"""Errors written for users, with their subclasses. By name: importing the classes would make `swad --help` slow."""


def _record_sigint() -> threading.Event:
    """Record Ctrl-C besides raising it: packages that are interrupted during import raise other exceptions."""
    interrupted = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, handle)
    return interrupted


def _print_error(text: str) -> None:
    with suppress(OSError):  # the terminal is gone, or the disk full
        print(text, file=sys.stderr)


def _flush() -> None:
    """Write what is left; where that fails, say so and drop it, so that Python does not try again at its end."""
    ending = sys.exc_info()[1]
    failed = isinstance(ending, SystemExit) and ending.code not in (0, None)
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE and not failed:  # whoever reads, such as head, has seen enough
            _print_error(f"error: {_describe(error)}")
        sys.exit(1)
