"""The worst loss along a line between two weights of a run."""

import pytest

pytest.importorskip("sklearn")

from helpers.tiny_runs import copied
from swad.flatness import image_losses, line
from swad.testbed.measure import engine
from swad.testbed.measure.saved_run import open_run
from swad.testbed.paper import figure1
from swad.testbed.paper.figure1 import WorstOnLine, measured_line


@pytest.mark.slow
def test_the_line_passes_through_both_weights_and_is_measured_once(tiny_run, tmp_path, monkeypatch):
    run = open_run(copied(tiny_run, tmp_path / "run"))
    progress = []
    (job,) = engine.plan([(run, ())], WorstOnLine(images=20, shares=(0.02, 0.1), points=3))
    engine.measure([job], progress=lambda *state: progress.append(state))
    measured = measured_line(job)
    assert measured.xs == (-0.5, 0.0, 0.5, 1.0, 1.5)
    assert measured.length == pytest.approx(line(run.state("last"), run.state("swad")).length)
    assert list(measured.worst) == pytest.approx([0.02 * measured.length, 0.1 * measured.length])
    loss_fn = image_losses(run.images(20).side("seen"), batch_size=256)
    for x, name in ((0.0, "last"), (1.0, "swad")):
        losses = loss_fn(run.model(name))
        mean = sum(values.mean().item() for values in losses.values()) / len(losses)
        assert measured.losses[measured.xs.index(x)] == pytest.approx(mean, rel=1e-5)
    small, large = measured.worst.values()
    assert all(a <= b <= c for a, b, c in zip(measured.losses, small, large, strict=True))
    assert any(a < b < c for a, b, c in zip(measured.losses, small, large, strict=True))
    assert progress[-1][1:] == (5 * engine.PARTS, 5 * engine.PARTS)
    monkeypatch.setattr(figure1, "worst_case", lambda *_: pytest.fail("all points are stored"))
    engine.measure([job])
    assert measured_line(job) == measured
