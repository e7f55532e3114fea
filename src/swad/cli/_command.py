"""The classes of commands and groups: examples below the help, and a suggestion for what is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from swad.cli._options import LISTS, NUMBERS, RANGES, words
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
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            lists = [option.metavar for option in self.params if isinstance(option, TyperOption) and option.multiple]
            if lists:
                self.epilog = f"{LISTS}{RANGES * (NUMBERS in lists)}\n\n{self.epilog}"

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            values: dict[str, Any] = {}
            try:
                values, _, stated = self.make_parser(ctx).parse_args(args=list(args))
                _refuse_repeated(stated)
                _check_lists(values, stated)
                return super().parse_args(ctx, args)
            except Exception as error:
                # By name: typer brings a copy of click's exceptions from version 0.25 on.
                if type(error).__name__ == "NoSuchOption":
                    _suggest_option(error, suggest)
                elif type(error).__name__ == "BadParameter":
                    _name_value(error, values)
                raise

    app.command(name, cls=Command, epilog=_epilog(examples))(function)


class ShowGroup(TyperGroup):
    """A group with the command `show`, which may be left out: `swad algorithms coral`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Treat a word as a name to show, unless it is a command or resembles one."""
        shows = args[0] not in self.commands and not did_you_mean(args[0], self.commands)
        return super().resolve_command(ctx, ["show", *args] if shows else args)


def _refuse_repeated(stated: list[Any]) -> None:
    """Refuse a second value of an option that takes one: click would drop the first one silently."""
    for parameter in dict.fromkeys(stated):
        if stated.count(parameter) > 1 and not (parameter.multiple or parameter.is_flag):
            raise typer.BadParameter(f"{parameter.opts[0]} takes one value, but was given twice: give it once.")


def _check_lists(values: Mapping[str, Any], stated: list[Any]) -> None:
    """Refuse a list that cannot be split, and an empty one, which would stand for the default."""
    for parameter in dict.fromkeys(stated):
        if not getattr(parameter, "multiple", False):
            continue
        for text in values[parameter.name]:
            try:
                empty = not words([text])
            except ValueError as error:
                raise typer.BadParameter(f"{parameter.opts[0]}: {error}.") from None
            if empty:
                raise typer.BadParameter(f"{parameter.opts[0]} needs a value, got {text!r}: give one, or leave it out.")


def _name_value(error: Any, values: Mapping[str, Any]) -> None:
    """Add the received value to the message of an invalid one, where typer leaves it out."""
    value = values.get(getattr(error.param, "name", ""))
    if isinstance(value, str) and value not in error.message:
        error.message += f"; got {value!r}"


def _suggest_option(error: Any, suggest: Suggest) -> None:
    """Rewrite the message of an unknown option."""
    closest = (*(error.possibilities or ()), None)[0]  # they come sorted by similarity
    if closest == "--trial":  # `--trial 3` is the trial of that number, not the number of trials
        closest = "--trial 0,1,2"
    instead = suggest(error.option_name) or closest
    error.possibilities = None
    error.message = f"No such option: {error.option_name}." + (f" Did you mean {instead}?" if instead else "")


def _epilog(examples: str) -> str:
    # typer joins lines that no blank line separates, and reads square brackets as markup.
    lines = [line.replace("[", r"\[") for line in examples.strip().splitlines()]
    return f"Example: {lines[0]}" if len(lines) == 1 else "\n\n".join(["Examples:", *lines])
