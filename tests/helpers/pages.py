"""The report page as text."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swad.testbed.measurements import stored_reports
from swad.testbed.results.diagnostics import find_problems
from swad.testbed.results.page.build import write_page
from swad.testbed.results.run_data import RunData


def build_page(runs: Sequence[RunData], **options: Any) -> str:
    """Write the page of some runs, and return its text."""
    with tempfile.TemporaryDirectory() as folder:
        reports, problems = stored_reports(runs)
        options = {"measured": reports, "problems": [*find_problems(runs), *problems], **options}
        return write_page(runs, Path(folder) / "page.html", **options).read_text(encoding="utf-8")
