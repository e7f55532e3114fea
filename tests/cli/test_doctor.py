"""`swad doctor`."""

from __future__ import annotations

import re
import tomllib

from helpers import ROOT
from swad.cli.doctor import NOT_SHOWN, extras


def test_doctor_shows_versions_and_devices(here):
    text = here("doctor").stdout
    assert "torch" in text
    assert "ms per update" in text
    for extra in extras():
        assert extra in text


def test_extras_are_those_of_the_package():
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["optional-dependencies"]
    shown = extras()
    assert set(shown) == set(declared) - set(NOT_SHOWN)
    listed = {"torch"}  # shown with its devices, above the extras
    for extra, packages in shown.items():
        listed |= set(packages)
        assert {re.split(r"[<>=\[]", requirement)[0] for requirement in declared[extra]} <= listed
