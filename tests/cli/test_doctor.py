"""`swad doctor`."""

from __future__ import annotations

import re
import tomllib

from helpers import ROOT
from swad.cli.doctor import EXTRAS


def test_doctor_shows_versions_and_devices(here):
    text = here("doctor").stdout
    assert "torch" in text
    assert "ms per update" in text
    for extra in EXTRAS:
        assert extra in text


def test_extras_are_those_of_the_package():
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["optional-dependencies"]
    listed = {"torch"}  # shown with its devices, above the extras
    for extra, packages in EXTRAS.items():
        listed |= set(packages)
        assert {re.split(r"[<>=\[]", requirement)[0] for requirement in declared[extra]} <= listed
