"""The classes of commands and groups: examples below the help, and a suggestion for what is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from swad.util.names import did_you_mean

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
                _refuse_repeated(self.make_parser(ctx).parse_args(args=list(args))[2])
                return super().parse_args(ctx, args)
            except Exception as error:
                # By name: typer brings a copy of click's exceptions from version 0.25 on.
                if type(error).__name__ == "NoSuchOption":
                    _suggest_option(error, suggest)
                raise

    app.command(name, cls=Command, epilog=_epilog(examples))(function)


class ShowGroup(TyperGroup):
    """A group with the command `show`, which may be left out: `swad algorithms coral`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take a word for a name to show if it is no command and resembles none."""
        shows = args[0] not in self.commands and not did_you_mean(args[0], self.commands)
        return super().resolve_command(ctx, ["show", *args] if shows else args)


def _refuse_repeated(stated: list[Any]) -> None:
    """Refuse a second value of an option that takes one: click would drop the first one silently."""
    for parameter in dict.fromkeys(stated):
        if stated.count(parameter) > 1 and not (parameter.multiple or parameter.is_flag):
            raise typer.BadParameter(f"{parameter.opts[0]} is given twice: give it once, lists with commas (A,B).")


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
