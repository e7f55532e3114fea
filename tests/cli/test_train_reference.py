"""The reference page of `swad train`."""

from __future__ import annotations

from helpers import ROOT
from swad.cli import train
from swad.cli.train_reference import reference
from swad.testbed.training.config import SETTINGS


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "train-options.md").read_text() == reference(), "run `make docs`"


def test_the_page_names_every_field():
    text = reference()
    missing = {name for name in SETTINGS if f"`{name}`" not in text and f"`{name}=False`" not in text}
    assert missing == {"dataset", *train.PYTHON_ONLY}
