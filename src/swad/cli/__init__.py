"""The command line. Every handler imports what it needs when it runs, so that `swad --help` answers at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated

try:
    import typer
except ImportError:  # the library is used without the commands
    sys.exit('the swad command needs its extra packages: pip install "swad[vision,report]"')

from swad.cli import catalogue, lab, runs

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(
    help="Domain generalization by seeking flat minima: train with a domain held out, average, report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (runs.demo, runs.train, runs.report, lab.flatness, lab.surface, lab.reproduce, catalogue.doctor):
    app.command()(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from swad import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.add_typer(catalogue.datasets_app, name="datasets")
app.add_typer(catalogue.algorithms_app, name="algorithms")


def main() -> None:
    """Run a command. What is the user's to mend ends in one line and the code 1; Ctrl-C in 130."""
    stop = _listen()
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        _say("stopped")
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ == "Interrupted" or stop.is_set():
            _say(str(error) if type(error).__name__ == "Interrupted" else "stopped")
            sys.exit(130)
        if not isinstance(error, ValueError | OSError) and type(error).__name__ not in _EXPECTED:
            raise
        if os.environ.get("SWAD_TRACEBACK"):
            raise
        _say(f"error: {error}")
        sys.exit(1)


_EXPECTED = {"RunError", "RecordError", "NetworkError", "SelectionError", "AlgorithmError"}
"""Errors that speak to the user, by name: importing them all would make `swad --help` slow."""


def _listen() -> threading.Event:
    """Note Ctrl-C as well as raise it: packages that are interrupted while they load raise something else."""
    stop = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    return stop


def _say(text: str) -> None:
    print(text, file=sys.stderr)
