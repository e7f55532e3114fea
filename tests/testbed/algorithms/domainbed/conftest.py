from __future__ import annotations

import os
from pathlib import Path

import pytest

from swad.testbed.algorithms.domainbed import files
from swad.testbed.algorithms.registry import _load

PUBLISHED = Path(__file__).parent / "published"
collect_ignore = ["published"]


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name the folder of the small methods in SWAD_ALGORITHMS, and forget what other tests loaded."""
    before = os.environ.get("SWAD_ALGORITHMS")
    monkeypatch.setenv("SWAD_ALGORITHMS", os.pathsep.join(filter(None, [before, str(PUBLISHED)])))
    files.load.cache_clear()
    monkeypatch.setenv(files.ANNOUNCED, "")
    _load.cache_clear()
    return PUBLISHED
