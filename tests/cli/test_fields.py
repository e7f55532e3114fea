"""Options that are generated from the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import typer
from typer.testing import CliRunner

from swad.cli._fields import Special, add_parameters, field_options, switch_off
from swad.testbed.training.setting import setting, settings_of


@dataclass(frozen=True)
class Plan:
    names: tuple[str, ...] = setting(("a",), help="Names.")
    radii: tuple[float, ...] | None = setting(None, help="Radii.")
    mode: Literal["fast", "slow"] = setting("fast", help="How.")
    steps: int = setting(3, minimum=1, help="Steps.")
    check: bool = setting(True, help="Check.")
    hidden: int = 0


def invoke(*arguments: str, stated: bool = False) -> tuple[dict[str, Any], str]:
    """Return the values of the fields and the output of a command whose options are those of `Plan`."""
    special = {"check": switch_off("--no-check", "Do not check."), "steps": Special(("--steps", "-s"))}
    options = field_options(settings_of(Plan).values(), special, lambda _: "Plan", stated=stated)
    values: dict[str, Any] = {}

    def command(*, own: int = 1, **given: Any) -> None:
        values.update({name: option.convert(given[name]) for name, option in options.items()}, own=own)

    add_parameters(command, [option.parameter for option in options.values()])
    app = typer.Typer()
    app.command()(command)
    return values, CliRunner().invoke(app, arguments, env={"COLUMNS": "150"}).output


def test_a_field_is_an_option_at_once():
    defaults = {"names": ("a",), "radii": None, "mode": "fast", "steps": 3, "check": True, "own": 1}
    assert invoke()[0] == defaults
    given = [
        "--names",
        "b,c",
        "--names",
        "d",
        "--radii",
        "0:1:0.5",
        "--mode",
        "x",
        "-s",
        "0",
        "--no-check",
        "--own",
        "2",
    ]
    # Choices and bounds are left to the check of all settings, which reports every problem.
    changed = {"names": ("b", "c", "d"), "radii": (0.0, 0.5, 1.0), "mode": "x", "steps": 0, "check": False, "own": 2}
    assert invoke(*given)[0] == changed


def test_what_was_not_stated_can_be_told_from_the_default():
    unstated = {"names": None, "radii": None, "mode": None, "steps": None, "check": True, "own": 1}
    assert invoke(stated=True)[0] == unstated


def test_the_help_shows_what_the_field_declares():
    text = invoke("--help")[1]
    for words in ("NAME,...", "NUMBER,...", "fast|slow", "[default: 3]", "Do not check."):
        assert words in text
    assert "hidden" not in text
