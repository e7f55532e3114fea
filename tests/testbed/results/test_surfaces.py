from helpers.measured_runs import write_measured_run
from swad.testbed.results.measurement_rows import SURFACE
from swad.testbed.results.surfaces import read_surface


def test_a_surface_that_is_not_whole_is_not_shown(tmp_path):
    run = write_measured_run(tmp_path / "a")
    path = run.path / SURFACE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:8], lines[-1]]))
    assert read_surface(run) is None
    assert read_surface(run, "line") is None
