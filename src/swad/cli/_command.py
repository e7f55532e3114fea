"""The class of every command: examples below the help, and a suggestion for an unknown option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

Suggest = Callable[[str], str | None]


def add_command(
    app: typer.Typer,
    function: Callable[..., None],
    examples: str,
    name: str | None = None,
    suggest: Suggest = lambda option: None,
) -> None:
    """Add a command to an app.

    Args:
        app: The app or group of commands.
        function: The command. Its docstring is the help text.
        examples: Command lines shown below the help, one per line.
        name: Name of the command. Default: the function's.
        suggest: Takes an unknown option and returns what to write instead, or None.
    """

    class Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            try:
                return super().parse_args(ctx, args)
            except Exception as error:
                # By name: typer brings a copy of click's exceptions from version 0.25 on.
                if type(error).__name__ == "NoSuchOption":
                    _suggest_option(error, suggest)
                raise

    app.command(name, cls=Command, epilog=_epilog(examples))(function)


def _suggest_option(error: Any, suggest: Suggest) -> None:
    """Rewrite the message of an unknown option."""
    closest = (*(error.possibilities or ()), None)[0]  # they come sorted by similarity
    instead = suggest(error.option_name) or closest
    error.possibilities = None
    error.message = f"No such option: {error.option_name}." + (f" Did you mean {instead}?" if instead else "")


def _epilog(examples: str) -> str:
    # typer joins lines that no blank line separates, and reads square brackets as markup.
    lines = [line.replace("[", r"\[") for line in examples.strip().splitlines()]
    return f"Example: {lines[0]}" if len(lines) == 1 else "\n\n".join(["Examples:", *lines])
