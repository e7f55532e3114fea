"""Where commands print: the terminal, or a wide page in files and pipes."""

from __future__ import annotations

import os

from rich.console import Console


def make_console() -> Console:
    """Return the terminal's console; files and pipes have room for any table."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=160)
