from __future__ import annotations

import pytest

from helpers import few_digits
from swad.testbed.data.benchmarks import digits


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs use few digits."""
    monkeypatch.setattr(digits, "render", few_digits.render)
