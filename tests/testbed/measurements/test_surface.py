import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from helpers.tiny_algorithms import make
from helpers.tiny_runs import copied, tiny
from swad.flatness import line, plane
from swad.testbed.measure import engine
from swad.testbed.measure.engine import choose_weights
from swad.testbed.measure.saved_run import Images, open_run
from swad.testbed.measurements.surface import Surface, averages_near, bn_updater, default_corners
from swad.testbed.models import networks, own
from swad.testbed.results.measurement_rows import SURFACE, RowFile, read_rows
from swad.testbed.results.runs import load_run
from swad.testbed.results.surfaces import read_surface
from swad.testbed.training import export
from swad.testbed.training.loop import RunError, train


def measure(run, **options):
    """Measure a surface, and return what is stored: by side the losses of the grid, and those of the points."""
    what = Surface(**{"images": 10, "points": (), **options})
    engine.measure(engine.plan([(run, ())], what))
    return read_surface(load_run(run.path), "line" if len(what.corners) == 2 else "plane")


def mean_losses(run, model, n_images):
    """The losses of a model by side: the mean over domains."""
    images, found = run.images(n_images), {}
    for side in ("seen", "unseen"):
        with torch.no_grad():
            losses = [functional.cross_entropy(model(x), y).item() for x, y in images.side(side).values()]
        found[side] = pytest.approx(sum(losses) / len(losses), rel=1e-5)
    return found


def test_a_surface_has_the_weights_own_losses_at_its_corners(tiny_run, tmp_path):
    run = open_run(copied(tiny_run, tmp_path / "run"))
    surface = measure(run, steps=3, images=20, points=("swad",))
    names = {"1": "step-000010", "2": "step-000020", "3": "step-000030", "swad": "swad"}
    assert set(surface.points) == {*names, "mean"}
    for point, name in names.items():
        assert surface.losses[point] == mean_losses(run, run.model(name), 20)
    x, _, distance = surface.points["mean"]
    assert x == pytest.approx(sum(surface.points[name][0] for name in "123") / 3)
    assert distance == pytest.approx(0, abs=1e-4)


def test_a_line_between_two_weights(tiny_run, tmp_path):
    run = open_run(copied(tiny_run, tmp_path / "run"))
    line = measure(run, corners=("best", "last"), steps=5, margin=0.0, images=20)
    assert line.ys == (0.0,)
    for side in ("seen", "unseen"):
        assert line.grids[side][0][0] == pytest.approx(line.losses["1"][side])
        assert line.grids[side][0][-1] == pytest.approx(line.losses["2"][side])


def test_new_weights_are_measured_again_and_not_mixed_with_the_old(tiny_run, tmp_path, monkeypatch):
    folder = copied(tiny_run, tmp_path / "run")
    old = measure(open_run(folder), steps=2, points=("swad",))
    shutil.copy(folder / "weights/swa.safetensors", folder / "weights/swad.safetensors")
    append, count = RowFile.append, 0

    def interrupted(self, *rows):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        append(self, *rows)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RowFile, "append", interrupted)
        measure(open_run(folder), steps=2, points=("swad",))
    assert read_surface(load_run(folder)) == old
    new = measure(open_run(folder), steps=2, points=("swad",))
    assert new.losses["swad"] != old.losses["swad"]
    n_rows = len(read_rows(folder, SURFACE))
    assert measure(open_run(folder), steps=2, points=("swad",)) == new
    assert len(read_rows(folder, SURFACE)) == n_rows


def test_averages_far_from_the_plane_are_left_out_unless_asked_for(tiny_run, tmp_path):
    folder = copied(tiny_run, tmp_path / "run")
    run = open_run(folder)
    assert "swad" in measure(run, steps=2, points=None).points
    state = run.state("swad")
    saved = {name: tensor + 100 for name, tensor in state.items()}
    export.save_weights(folder / "weights" / "swad.safetensors", saved, export.read_card(run.file("swad")))
    assert "swad" not in measure(open_run(folder), steps=2, points=None).points
    assert "swad" in measure(open_run(folder), steps=2, points=("swad",)).points


def test_averages_are_near_within_the_size_of_the_plane_or_line():
    corners = [{"w": torch.tensor(w)} for w in ([0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 2.0, 0.0])]
    averages = {"low": [1, 1, 1.9], "high": [1, 1, 2.1], "here": [3.9, 0, 0], "far": [4.1, 0, 0], "back": [0, -2.1, 0]}
    run = SimpleNamespace(averages=tuple(averages), state=lambda name: {"w": torch.tensor(averages[name]).float()})
    assert averages_near(run, plane(*corners)) == ["low", "here"]
    assert averages_near(run, line(*corners[:2])) == ["here"]


def test_a_run_without_snapshots_says_how_to_get_them(tmp_path):
    folder = train(tiny(tmp_path / "run", snapshots=(), steps=10, evaluate_every=5)).run_dir
    with pytest.raises(RunError, match="no snapshots, but a plane needs three weights: train with --snapshots 5,7,9"):
        choose_weights([open_run(folder)], [], Surface())
    with pytest.raises(ValueError, match="three different weights for a plane, or two for a line, got swad,swad"):
        Surface(corners=("swad", "swad"))


def test_statistics_of_points_are_those_of_the_seen_images_in_batches_of_all_domains():
    """Batches of one domain would miss the variance between domains, and DSON has statistics for each."""
    seen = torch.randn(200, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 + 5
    seen[90:] += 8
    pictures = {
        "a": (seen[:90], torch.zeros(90)),
        "b": (seen[90:], torch.zeros(110)),
        "t": (seen + 99, torch.zeros(200)),
    }
    images = Images(pictures, ("a", "b"), ("t",))

    def updater(algorithm, frozen):
        config = SimpleNamespace(algorithm=algorithm, freeze_bn=frozen)
        return bn_updater(SimpleNamespace(config=config), images)

    assert updater("erm", frozen=True) is None
    assert not updater("erm", frozen=False)(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    assert updater("erm", frozen=False)(model)
    used = torch.cat([seen[:64], seen[90:154]]).transpose(0, 1).flatten(1)  # two batches of 32 images of each domain
    torch.testing.assert_close(model[0].running_mean, used.mean(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model[0].running_var, used.var(1), rtol=1e-2, atol=0)

    predictor = make("dson", networks.build("test_resnet", 5, freeze_bn=False), domains=2).predictor
    assert updater("dson", frozen=False)(predictor)
    convolution, norm, *_ = predictor.network.conv1
    maps = convolution(seen[90:154]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_mean[1], maps.mean(1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("ranges", "corners"),
    [
        ({"swad": (100, 220)}, (120, 150, 210)),  # the first, the middle and the last one inside
        ({"swad": (100, 600)}, (300, 420, 540)),  # the paper's 50, 70 and 90 %
        ({"swad": (100, 130), "swa": (500, 600)}, (90, 120, 150)),  # a single one inside: the nearest
        ({"swad_text": (400, 600), "swad": (240, 420)}, (240, 330, 420)),
        ({"swa": (500, 600)}, (300, 420, 540)),
        ({"swad": (None, None)}, (300, 420, 540)),
    ],
)
def test_corners_are_inside_the_averaged_range(tiny_run, ranges, corners):
    run = open_run(tiny_run)
    names = [f"step-{step:06d}" for step in range(60, 601, 30)]
    run = replace(
        run,
        config=run.config.replace(steps=600),
        weights=dict.fromkeys(names, "file"),
        ranges={name: {"start_step": start, "end_step": end} for name, (start, end) in ranges.items()},
    )
    chosen = default_corners(run)
    assert chosen == tuple(f"step-{step:06d}" for step in corners)


TIED = """
from torch import nn

class NETWORK(nn.Module):
    def __init__(self, num_classes, in_chans):
        super().__init__()
        self.first = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * in_chans, 16))
        self.encode, self.decode = nn.Linear(16, 16), nn.Linear(16, 16)
        self.decode.weight = self.encode.weight
        self.out = nn.Linear(16, num_classes)

    def forward(self, images):
        return self.out(self.decode(self.encode(self.first(images)).relu()))
"""


def test_tied_weights_of_your_own_network_are_saved_and_span_a_plane(tmp_path, monkeypatch):
    pytest.importorskip("timm")
    monkeypatch.setattr(own, "__path__", [str(tmp_path)])
    (tmp_path / "own_tied.py").write_text(TIED)
    run = open_run(
        train(tiny(tmp_path / "run", network="own_tied", steps=9, evaluate_every=3, snapshots=(5, 7, 9))).run_dir
    )
    assert run.config.weights == "random"
    model = run.model("swad")
    assert model.encode.weight is model.decode.weight
    state = run.state("swad")
    torch.testing.assert_close(state["encode.weight"], state["decode.weight"], rtol=0, atol=0)
    names = ["step-000005", "step-000007", "step-000009"]
    surface = measure(run, corners=tuple(names), steps=2)
    first, second = (run.model(name) for name in names[:2])
    squares = [(a - b).square().sum() for a, b in zip(first.parameters(), second.parameters(), strict=True)]
    assert surface.points["2"][0] == pytest.approx(sum(squares).sqrt().item(), rel=1e-4), "tied weights count once"
