"""The names and signatures that users may rely on change only on purpose."""

from __future__ import annotations

import difflib

import pytest

from helpers import ROOT

pytest.importorskip("lightning.pytorch")
pytest.importorskip("transformers.trainer")


def test_the_public_interface_is_the_written_one():
    from helpers.public_api import public_api

    written = (ROOT / "tests" / "public_api.txt").read_text().splitlines()
    changed = list(difflib.unified_diff(written, public_api().splitlines(), lineterm="", n=0))
    assert not changed, "\n".join(["see tests/helpers/public_api.py", *changed])
