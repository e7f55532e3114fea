"""Options that are generated from the fields of a dataclass: RunConfig, SweepSpec, PaperConfig.

A field declares its type, default and help text, and its option follows from that: its name with dashes, its choices,
its completion of several values separated by commas. `Special` is for an option that differs from its field.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin

import typer

from swad.cli import _options as parse
from swad.testbed.training.setting import Setting

_PARSERS: dict[Any, tuple[str, Callable[[str, list[str]], Any]]] = {
    str: (parse.NAMES, lambda flag, texts: tuple(parse.words(texts))),
    int: (parse.NUMBERS, parse.whole_numbers),
    float: (parse.NUMBERS, parse.numbers),
}
"""The placeholder of several values of a type, and the parser of their texts."""


@dataclass(frozen=True)
class Special:
    """What an option does otherwise than its field says.

    Args:
        flags: Names of the option.
        annotation: Type that the option is made from.
        default: Default on the command line.
        help: Help text.
        metavar: Placeholder of the value.
        convert: Turns the value from the command line into the field's.
        complete: Completes the value in the shell.
    """

    flags: tuple[str, ...] = ()
    annotation: Any = None
    default: Any = inspect.Parameter.empty
    help: str = ""
    metavar: str | None = None
    convert: Callable[[Any], Any] | None = None
    complete: Callable[[str], list[str]] | None = None


def switch_off(flag: str, help: str) -> Special:
    """Return the option that sets a field to False; without it the field is True."""
    return Special((flag,), bool, False, help, convert=lambda off: not off)


class FieldOption:
    """The option of one field.

    Args:
        setting: The declaration of the field.
        special: What the option does otherwise.
        panel: Heading of the help text above the option.
        stated: Whether the option has no default of its own, so that only what the user states has a value.
    """

    def __init__(
        self, setting: Setting, special: Special | None = None, panel: str | None = None, *, stated: bool = False
    ) -> None:
        self._special = special = special or Special()
        shape = setting if special.annotation is None else replace(setting, annotation=special.annotation, default=())
        self._unstated = None if stated else shape.default
        self._element = next((get_args(kind)[0] for kind in shape.types if get_origin(kind) in (tuple, Mapping)), None)
        flags = special.flags or ("--" + setting.name.replace("_", "-"),)
        self._flag = flags[0].lstrip("-")
        metavar = special.metavar or "|".join(shape.choices) or None
        # Choices and bounds are checked with the other settings, so that all problems are reported together.
        annotation: Any = shape.annotation
        if self._element is not None:
            annotation, metavar = list[str], special.metavar or _PARSERS[self._element][0]
        elif shape.choices:
            annotation = str
        default = None if stated or self._element is not None else setting.default
        if special.default is not inspect.Parameter.empty:
            default = special.default
        if default is None:
            annotation = annotation | None
        option = typer.Option(
            *flags,
            help=special.help or setting.help,
            metavar=metavar,
            rich_help_panel=panel,
            show_default=default not in (None, "") and shape.types != (bool,),
            autocompletion=special.complete,
        )
        self.parameter = _parameter(setting.name, Annotated[annotation, option], default)

    def convert(self, value: Any) -> Any:
        """Turn the value from the command line into the field's: several texts into names or numbers."""
        if self._special.convert is not None:
            return self._special.convert(value)
        if self._element is None:
            return value
        return _PARSERS[self._element][1](self._flag, value) if value else self._unstated


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def argument(setting: Setting, metavar: str, complete: Callable[[str], list[str]]) -> inspect.Parameter:
    """Return the required argument of a field."""
    shown = typer.Argument(help=setting.help, metavar=metavar, show_default=False, autocompletion=complete)
    return _parameter(setting.name, Annotated[setting.annotation, shown])


def field_options(
    settings: Iterable[Setting],
    special: Mapping[str, Special],
    panel: Callable[[Setting], str | None],
    *,
    stated: bool = False,
) -> dict[str, FieldOption]:
    """Return the options of several fields, by the names of the fields."""
    return {each.name: FieldOption(each, special.get(each.name), panel(each), stated=stated) for each in settings}


def add_parameters(
    command: Callable[..., None], before: Sequence[inspect.Parameter], after: Sequence[inspect.Parameter] = ()
) -> None:
    """Let generated parameters take the place of a command's `**options`, before and after its own."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
    parameters = [*before, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *after]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
