"""The hand-written pages: README and those under docs."""

from __future__ import annotations

import re
from pathlib import Path

from helpers import ROOT

BUILT = {"_build", "gallery"}
"""Folders under docs that the build of the site writes."""


def pages() -> list[Path]:
    """Return every hand-written page."""
    docs = (path for path in sorted((ROOT / "docs").rglob("*.md")) if not BUILT & {*path.parts})
    return [ROOT / "README.md", *docs]


def name(page: Path) -> str:
    """Return the path of a page below the root."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, *languages: str) -> list[str]:
    """Return the code of the fenced blocks in these languages; the empty one is that of commands."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [code for language, code in found if language in languages]


def example(page: str, containing: str) -> str:
    """Return the Python example of a page under docs that contains a text."""
    return next(
        code for code in blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), "python") if containing in code
    )
