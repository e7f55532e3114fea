"""Reports of stored measurements."""

from pathlib import Path

import pytest

from swad.testbed.measure.run_surface import report_surfaces

pytest.importorskip("matplotlib")

KEPT = Path(__file__).parents[3] / "benchmarks" / "results"


def test_a_report_names_the_file_of_rows_that_is_there(tmp_path):
    run = KEPT / "pacs-resnet50-surface/PACS/erm/sketch-0"
    (rows,) = report_surfaces([run], output=tmp_path, formats=()).row_files
    assert rows.suffix == ".gz"
    assert rows.is_file()
