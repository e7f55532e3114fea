import subprocess
from collections.abc import Callable

import pytest

pytest.importorskip("matplotlib")

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_figures_of_the_paper_from_the_start(here: Call, tmp_path, monkeypatch):
    """Three runs of 20 steps on one target; the other figures reuse the runs of the first."""
    options = ["-t", "paper", "--steps", "20", "-o", tmp_path, "--figure-formats", "svg", "--device", "cpu"]
    few = ["--directions", "4", "--images", "10", "--radii", "0,5"]
    result = here("reproduce", "figure3", *options, *few)
    text = (tmp_path / "figures" / "digits" / "figure3.svg").read_text()
    for name in ("ERM (best)", "SAM (best)", "SWA (cyclic)", "SWA", "SWAD"):
        assert f">{name}<" in text
        assert name in result.stdout
    assert "SAM (best) against ERM (best)" in result.stdout  # paired over runs
    page = (tmp_path / "report.html").read_text()
    assert "Flatness on digits" in page
    for name in ("SAM (best)", "SWA (cyclic)", "SWA", "SWAD"):
        assert f"paper, trial 0: {name} against ERM (best)" in page

    monkeypatch.setattr("swad.training.loop._Run.run", lambda self: pytest.fail("nothing is missing"))
    here("reproduce", "figure4", *options, "--grid", "3", "--images", "10")
    assert "target: paper" in (tmp_path / "figures" / "digits" / "figure4.svg").read_text()
    here("reproduce", "figure5", *options)
    drawn = (tmp_path / "figures" / "digits" / "figure5.svg").read_text()
    assert "Validation accuracy, %" in drawn
    assert "Validation loss" in drawn
    assert "Loss surfaces on digits" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "figure9"], "the figures that can be reproduced are figure3, figure4, figure5; got 'figure9'"),
        (["reproduce", "figure3", "--methods", "erm,adam"], "the methods of Figure 3 are erm, sam"),
        (["reproduce", "figure3", "--live-weights", "first"], "--live-weights must be best or last"),
        (["reproduce", "figure3", "--dataset", "pacs"], "needs its directory"),
        (["reproduce", "figure3", "--trials", "0"], "--trials must be 1 or more"),
        (["reproduce", "figure3", "--jobs", "0"], "--jobs must be 1 or more"),
    ],
)
def test_wrong_inputs_get_one_line(here: Call, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = here(*arguments, code=1)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
