"""What Figures 1 and 2, the cost and the settings are made of."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from helpers.tiny_runs import copied
from swad.experiments.reproduce.base import Results
from swad.experiments.reproduce.config import make_config
from swad.experiments.reproduce.cost import formula_table
from swad.experiments.reproduce.figure1 import robust_table
from swad.experiments.reproduce.figure2 import plane_corners, sampled_steps, sampling_table
from swad.experiments.reproduce.items import ITEMS
from swad.experiments.reproduce.run import build_item
from swad.experiments.reproduce.settings import COMPARISON, method_settings_table, search_space_table
from swad.experiments.run_surface import run_surface
from swad.experiments.saved_run import open_run
from swad.results.figures.robust_lines import RobustLine
from swad.results.figures.sampling import sampling_figure, trajectory
from swad.results.run_data import RunData
from swad.results.runs import load_run
from swad.results.surfaces import read_surface
from swad.training.run_dir import RunError


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
    run_surface(run, corners, ["swa", "swad"], steps=3, n_images=10)
    surface = read_surface(load_run(run.path))
    assert list(trajectory(surface)) == [10, 20, 30]
    figure = sampling_figure(surface, sampled)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:2] == ["SWA: 1 weight", f"SWAD: {len(sampled['swad'])} weights"]
    table = sampling_table("digits", [(load_run(run.path), sampled)])
    assert [row.cells[3].printed for row in table.rows][1] == "100"


@pytest.mark.parametrize("name", ["figure1", "figure2", "figure3", "figure4", "figure5", "ranking", "sensitivity"])
def test_without_a_finished_run_a_figure_says_so(tmp_path, name):
    config = make_config(scale="smoke", output=tmp_path)
    with pytest.raises(RunError, match="no run on digits is finished: add --retry-failed"):
        build_item(ITEMS[name], Results(config))


def test_our_settings_are_the_papers():
    table = search_space_table()
    compared = [cell.printed for row in table.rows if row.group == COMPARISON for cell in row.cells]
    compared += [row.cells[2].printed for row in method_settings_table().rows]
    assert len(compared) == 4 * 3 + 27
    assert set(compared) == {"yes"}


def test_the_formula_gives_the_printed_overheads():
    table = formula_table({"PACS": 100, "DomainNet": 500})
    ours = {row.name: row.cells[2].printed for row in table.rows if row.group == "ours"}
    paper = {row.name: row.cells[2].printed for row in table.rows if row.group == "paper"}
    assert ours == paper == {"PACS": "1.07", "DomainNet": "1.27"}
