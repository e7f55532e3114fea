"""Reports of stored measurements."""

from pathlib import Path

import pytest

from swad.testbed.experiments.flatness_report import report_flatness
from swad.testbed.experiments.run_surface import report_surfaces

pytest.importorskip("matplotlib")

KEPT = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("report", "run"),
    [
        (lambda run, **files: report_flatness({run: ()}, **files), "pacs-resnet50/PACS/erm/sketch-0"),
        (lambda run, **files: report_surfaces([run], **files), "pacs-resnet50-surface/PACS/erm/sketch-0"),
    ],
)
def test_a_report_names_the_file_of_rows_that_is_there(report, run, tmp_path):
    (rows,) = report(KEPT / run, output=tmp_path, formats=()).row_files
    assert rows.suffix == ".gz"
    assert rows.is_file()
