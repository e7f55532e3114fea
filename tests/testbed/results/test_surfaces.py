import pytest

from helpers.measured_runs import write_measured_run
from swad.testbed.results import surfaces
from swad.testbed.results.measurement_rows import SURFACE
from swad.testbed.results.surfaces import points_table, read_surface
from swad.testbed.results.training_curves import Valley


def test_a_surface_that_is_not_whole_is_not_shown(tmp_path):
    run = write_measured_run(tmp_path / "a")
    path = run.path / SURFACE
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:8], lines[-1]]))
    assert read_surface(run) is None
    assert read_surface(run, "line") is None


@pytest.mark.parametrize(("averaged", "steps"), [((40, 80), "90"), ((60, 80), "50, 90"), ((50, 90), ""), (None, "")])
def test_corners_outside_the_averaged_range_are_named(tmp_path, monkeypatch, averaged, steps):
    surface = read_surface(write_measured_run(tmp_path / "a"))
    found = {} if averaged is None else {"swad": Valley("swad", *averaged, 10, 1.0)}
    monkeypatch.setattr(surfaces, "valleys", lambda runs: [found])
    outside = f"photo: the plane goes through weights outside the range that SWAD averaged (step {steps})"
    notes = points_table([surface]).notes
    assert [note.startswith(outside) for note in notes] == [True] * bool(steps)
