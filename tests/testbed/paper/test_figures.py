"""What Figures 1 and 2, the cost and the settings are made of."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from helpers.tiny_runs import copied
from swad.testbed.measure import engine
from swad.testbed.measure.saved_run import open_run
from swad.testbed.measurements.surface import Surface
from swad.testbed.paper.cost import formula_table
from swad.testbed.paper.figure1 import robust_table
from swad.testbed.paper.figure2 import plane_corners, sampled_steps, sampling_table
from swad.testbed.paper.items import ITEMS
from swad.testbed.paper.paper_config import make_config
from swad.testbed.paper.reproduce import build_item
from swad.testbed.paper.reproduction import PaperRuns
from swad.testbed.paper.search_spaces import COMPARISON, search_space_table
from swad.testbed.paper.sensitivity import sensitivity_table, settings_around
from swad.testbed.results.figures.robust_lines import RobustLine
from swad.testbed.results.figures.sampling import sampling_figure, trajectory
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run
from swad.testbed.results.surfaces import read_surface
from swad.testbed.results.tuning import ValleySetting
from swad.testbed.training.run_dir import RunError


def test_figure_1_says_for_how_many_targets_the_lowest_point_moves():
    def line(target: str, worst: tuple[float, ...]) -> RobustLine:
        run = RunData(Path(target), {"dataset": "PACS", "target": target, "algorithm": "erm"}, (), True)
        return RobustLine(run, ("last", "swad"), 2.0, (0.0, 0.5, 1.0), (0.1, 0.2, 0.3), {0.1: worst})

    table = robust_table("PACS", [line("photo", (3.0, 2.0, 4.0)), line("sketch", (1.0, 2.0, 3.0))])
    assert table.notes[1] == "From the loss to the largest γ the lowest point moves toward SWAD for 1 of 2 targets."
    assert table.notes[2].startswith("The line is measured between 0.00 and 1.00; a lowest point at one of them")
    cells = [[cell.printed for cell in row.cells] for row in table.rows]
    assert cells[0] == ["0 (the loss)", "0.000", "0.00", "0.100", "0.300", "0.100"]
    assert cells[1] == ["5", "0.100", "0.50", "3.000", "4.000", "2.000"]


@pytest.mark.slow
def test_figure_2_marks_the_steps_that_the_averages_took(tiny_run, tmp_path):
    run = open_run(copied(tiny_run, tmp_path / "run"))
    sampled = sampled_steps(run)
    assert sampled["swa"] == (40,)  # an evaluation in the last 20 % of 40 steps
    first, last = run.ranges["swad"]["start_step"], run.ranges["swad"]["end_step"]
    assert sampled["swad"] == tuple(range(first, last + 1))
    assert len(sampled["swad"]) == run.ranges["swad"]["n_averaged"]
    corners = plane_corners(run)
    assert len(set(corners)) == 3
    assert corners[-1] == "step-000030"
    what = Surface(images=10, corners=corners, points=("swa", "swad"), steps=3)
    engine.measure(engine.plan([(run, ())], what))
    surface = read_surface(load_run(run.path))
    assert list(trajectory(surface)) == [10, 20, 30]
    figure = sampling_figure(surface, sampled)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:2] == ["SWA: 1 weight", f"SWAD: {len(sampled['swad'])} weights"]
    table = sampling_table("digits", [(load_run(run.path), sampled)])
    assert [row.cells[3].printed for row in table.rows][1] == "100"


@pytest.mark.parametrize(
    ("averaged", "corners"),
    [
        ((200, 400), (200, 400, 600)),
        ((190, 420), (200, 400, 600)),  # the nearest snapshots
        ((300, 600), (300, 400, 600)),  # to the end of training: the middle of the range
        (None, (200, 400, 600)),
        ((580, 600), (200, 400, 600)),  # both ends are the last snapshot: thirds of the others
    ],
)
def test_the_plane_of_figure_2_goes_through_three_snapshots(averaged, corners):
    names = {step: f"step-{step:06d}" for step in range(100, 601, 100)}
    run = SimpleNamespace(snapshots={name: step for step, name in names.items()}, averaged_range=averaged)
    assert plane_corners(run) == tuple(names[step] for step in corners)  # type: ignore[arg-type]


def test_the_sensitivity_table_names_settings_as_the_paper_does():
    center = ValleySetting(tolerance_ratio=0.2)
    settings = dict.fromkeys(setting for group in settings_around(center).values() for setting in group)
    steps = {"first": 10, "last": 20, "averaged": 11, "converged": True}
    rows = [
        {"weights": setting.name, "side": side, "accuracy": 0.8 + setting.tolerance_ratio, **steps}
        for setting in settings
        for side in ("seen", "unseen")
    ]
    table = sensitivity_table("PACS", {"photo": rows}, center)
    names = [row.name for row in table.rows]
    assert names[:3] == ["N_s = 1", "N_s = 2", "N_s = 3 (paper)"]
    assert names[-6:] == ["r = 1", "r = 1.1", "r = 1.2 (paper)", "r = 1.3", "r = 1.4", "r = 1.5"]
    assert [row.cells[-1].printed for row in table.rows][-6:] == ["-20.0", "-10.0", "0", "+10.0", "+20.0", "+30.0"]
    assert table.notes[0].startswith("Means over 1 run (targets photo)")


@pytest.mark.parametrize("name", ["figure1", "figure2", "figure3", "figure4", "figure5", "ranking", "sensitivity"])
def test_without_a_finished_run_a_figure_says_so(tmp_path, name):
    config = make_config(scale="smoke", output=tmp_path)
    with pytest.raises(RunError, match=r"no run on digits is finished: train failed runs again \(--retry-failed\)"):
        build_item(ITEMS[name], PaperRuns(config))


def test_our_search_spaces_are_the_papers():
    table = search_space_table()
    compared = [cell.printed for row in table.rows if row.group == COMPARISON for cell in row.cells]
    assert len(compared) == 4 * 3
    assert set(compared) == {"yes"}


def test_the_formula_gives_the_printed_overheads():
    table = formula_table({"PACS": 100, "DomainNet": 500})
    ours = {row.name: row.cells[2].printed for row in table.rows if row.group == "ours"}
    paper = {row.name: row.cells[2].printed for row in table.rows if row.group == "paper"}
    assert ours == paper == {"PACS": "1.07", "DomainNet": "1.27"}
