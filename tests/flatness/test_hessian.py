"""Eigenvalues, trace and density of the Hessian, against the Hessian itself."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from helpers.landscapes import Point, Quadratic, fingerprint, network, symmetric, trained
from swad.flatness import curvature, image_losses, local
from swad.flatness.directions import Directions
from swad.flatness.hessian import require_curvlinops
from swad.flatness.weights import Weights

pytest.importorskip("curvlinops")


def dense(model: nn.Module, data, domain=None) -> torch.Tensor:
    """The whole Hessian of the mean loss, in double."""
    model = model.double().eval()
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]

    def loss(flat):
        pieces = torch.split(flat, [shape.numel() for shape in shapes])
        weights = {n: piece.view(s) for n, piece, s in zip(names, pieces, shapes, strict=True)}
        chosen = [domain] if domain else list(data)
        losses = [
            functional.cross_entropy(functional_call(model, weights, data[d][0].double()), data[d][1]) for d in chosen
        ]
        return sum(losses) / len(losses)

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return torch.autograd.functional.hessian(loss, flat)


def test_a_quadratic():
    loss = Quadratic(symmetric())
    values = torch.linalg.eigvalsh(loss.hessian)
    model = Point()
    before = fingerprint(model)
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    row = curvature(model, loss, 3, trace_vectors=400, tolerance=1e-9).row()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert fingerprint(model) == before
    assert row.eigenvalues == pytest.approx(values.flip(0)[:3].tolist(), rel=1e-8)
    assert row.trace == pytest.approx(loss.hessian.trace().item(), abs=4 * row.trace_error)
    # Rademacher vectors: the variance is twice the sum of squares off the diagonal.
    off = (loss.hessian - loss.hessian.diag().diag()).square().sum().item()
    assert row.trace_error == pytest.approx(math.sqrt(2 * off / 400), rel=0.25)
    assert row.parameters == 10


def test_a_network_against_its_dense_hessian():
    model, data = trained()
    model = model.double()
    data = {d: (x.double(), y) for d, (x, y) in data.items()}
    found = curvature(model, image_losses(data, batch_size=32), 4, trace_vectors=60, tolerance=1e-7)
    assert [row.domain for row in found.rows] == ["photo", "sketch", None]
    for row in found.rows:
        hessian = dense(model, data, row.domain)
        assert row.eigenvalues == pytest.approx(torch.linalg.eigvalsh(hessian).flip(0)[:4].tolist(), rel=1e-6)
        assert row.trace == pytest.approx(hessian.trace().item(), abs=4 * row.trace_error)
        assert row.products > 60


def test_flatness_at_a_small_radius_is_the_trace_s():
    model, data = trained()
    model[2] = nn.Softplus()  # smooth: the kinks of a ReLU make the loss rise more than its Hessian says
    model = model.double()
    data = {d: (x.double(), y) for d, (x, y) in data.items()}
    hessian = dense(model, data)
    row = local(model, image_losses(data), [0.02], 40).row(0.02)
    with Weights(model) as weights:
        drawn = Directions(weights, 0, antithetic=True, normalize="sphere")
        along = [torch.cat([tensor.flatten() for tensor in drawn[k]]) for k in range(40)]
    curved = torch.stack([d @ hessian @ d for d in along])
    assert row.mean == pytest.approx(0.02**2 / 2 * curved.mean().item(), rel=1e-3)
    # Of which the expectation is the trace over the dimension.
    assert curved.mean().item() == pytest.approx(
        hessian.trace().item() / len(hessian), abs=4 * curved.std().item() / 20**0.5
    )


def test_a_density_is_one_in_all_and_lies_where_the_eigenvalues_do():
    model, data = trained()
    model = model.double()
    data = {d: (x.double(), y) for d, (x, y) in data.items()}
    loss = image_losses(data)
    row = curvature(
        model, loss, 1, trace_vectors=0, density=True, density_steps=40, density_repeats=8, domains=[None]
    ).row()
    values = torch.linalg.eigvalsh(dense(model, data))
    grid, density = (torch.tensor(one) for one in row.density)
    width = grid[1] - grid[0]
    assert (density.sum() * width).item() == pytest.approx(1, abs=0.05)
    assert grid[0] < values[0] < values[-1] < grid[-1]
    mean = (grid * density).sum() * width
    assert mean.item() == pytest.approx(values.mean().item(), abs=0.3 * values.std().item())
    assert math.isnan(row.trace)


SPECTRA = {
    "low rank": [0.0] * 497 + [2.0, 3.0, 5.0],
    "negative": [-k / 200 for k in range(1, 201)],
    "both signs": [k / 50 - 1 for k in range(300)],
    "one value": [3.0] * 40,
    "zero": [0.0] * 40,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("steps", [8, 64])
def test_a_density_of_a_known_spectrum_has_area_one_and_repeats(name, steps, dtype, recwarn):
    spectrum = torch.tensor(SPECTRA[name], dtype=dtype)
    mirror = torch.randn(len(spectrum), generator=torch.Generator().manual_seed(0), dtype=dtype)
    mirror /= mirror.norm()
    model = nn.Linear(len(spectrum), 1, bias=False, dtype=dtype)

    def loss(model):
        rotated = model.weight[0] - 2 * mirror * (mirror @ model.weight[0])
        return 0.5 * spectrum @ rotated.square()

    def density(trace_vectors):
        options = {"density_steps": steps, "density_repeats": 4}
        return curvature(model, loss, 1, trace_vectors=trace_vectors, density=True, **options).row().density

    torch.manual_seed(1)
    first = density(trace_vectors=0)
    torch.manual_seed(2)
    assert density(trace_vectors=2) == first
    points, values = (torch.tensor(column, dtype=torch.float64) for column in first)
    assert torch.trapezoid(values, points).item() == pytest.approx(1, abs=1e-3)
    assert points[0] < spectrum.min() <= spectrum.max() < points[-1]
    assert not [warning for warning in recwarn if "area" in str(warning.message)]
    # Four random starts estimate the mean of the spectrum with this standard error.
    error = math.sqrt(2 / 4 / len(spectrum)) * spectrum.std().item()
    mean = torch.trapezoid(points * values, points).item()
    assert mean == pytest.approx(spectrum.mean().item(), abs=4 * error + 1e-2 * spectrum.abs().max().item() + 1e-3)
    peak = points[values.argmax()].item()
    if name == "low rank":
        assert peak == pytest.approx(0, abs=0.05 * spectrum.max().item())


def test_a_density_with_too_few_points_warns():
    with pytest.warns(UserWarning, match=r"the area below the spectral density is .* use more density_points"):
        curvature(Point(), Quadratic(symmetric()), 1, trace_vectors=0, density=True, density_steps=10, density_points=4)
    with pytest.raises(ValueError, match="a density needs 2 or more density_steps"):
        curvature(Point(), Quadratic(symmetric()), 1, density=True, density_steps=1)


def test_single_precision_and_parameter_filters():
    model, data = trained()
    loss = image_losses(data)
    head = curvature(model, loss, 2, trace_vectors=20, include="5.*", domains=[None]).row()
    assert head.parameters == 64 * 3 + 3
    hessian = dense(model, data)[-195:, -195:]
    assert head.eigenvalues == pytest.approx(torch.linalg.eigvalsh(hessian).flip(0)[:2].tolist(), rel=1e-2)


def test_zero_eigenvalues_repeat():
    curves = torch.tensor([3.0] + [0.0] * 39)
    model = nn.Linear(40, 1, bias=False)
    one, two = (curvature(model, lambda m: curves @ m.weight[0].square(), 3).row() for _ in range(2))
    assert one == two
    assert one.eigenvalues == (pytest.approx(6), 0.0, 0.0)


@pytest.mark.parametrize(("n_eigenvalues", "restarts"), [(1, False), (9, True)])
def test_progress_moves_with_every_product_and_waits_for_restarts(n_eigenvalues, restarts):
    model, data = trained()
    calls = []

    def progress(*call):
        calls.append(call)

    found = curvature(model, image_losses(data), n_eigenvalues, trace_vectors=4, progress=progress)
    expected = 4 + 22
    assert any(row.products > expected for row in found.rows) == restarts
    done = [
        k * expected + number
        for k, row in enumerate(found.rows)
        for number in (*(min(product, expected - 1) for product in range(1, row.products + 1)), expected)
    ]
    assert calls == [("curvature", number, 3 * expected) for number in done]


def test_the_seed_decides():
    model, data = trained()
    loss = image_losses(data)
    one, two, other = (curvature(model, loss, 1, trace_vectors=4, domains=[None], seed=s).row() for s in (0, 0, 1))
    assert one == two
    assert one.trace != other.trace


def test_weights_the_loss_does_not_touch_have_no_curvature():
    row = curvature(Point(), lambda model: model.b.square().sum() + 3 * model.a[0, 0], 2, trace_vectors=8).row()
    assert row.eigenvalues == pytest.approx([2.0, 2.0])
    assert row.trace == pytest.approx(8.0)


def test_refusals(monkeypatch):
    with pytest.raises(ValueError, match="no domain 'art'"):
        curvature(Point(), Quadratic(symmetric()), domains=["art"])
    with pytest.raises(ValueError, match="more parameters than eigenvalues"):
        curvature(Point(), Quadratic(symmetric()), 10)
    with pytest.raises(ValueError, match="trace_vectors 0, or 2 or more"):
        curvature(Point(), Quadratic(symmetric()), trace_vectors=1)
    model = network()
    before = fingerprint(model)
    with pytest.raises(ValueError, match="has no graph"):
        curvature(model, lambda m: m[0].weight.detach().sum())
    assert fingerprint(model) == before
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    with pytest.raises(ValueError, match=r'pip install "swad\[flatness\]"'):
        curvature(Point(), Quadratic(symmetric()))


def test_attention_and_a_loss_without_curvature():
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)

    def loss(model):
        return model(x).square().mean() + model(x)[..., 0].mean().exp()

    pattern = "self_attn.in_proj_*"
    found = curvature(model, loss, 2, trace_vectors=0, include=pattern).row()
    chosen = {name: tensor for name, tensor in model.named_parameters() if name.startswith("self_attn.in_proj")}
    flat = torch.cat([tensor.detach().flatten() for tensor in chosen.values()])

    def at(vector):
        pieces = torch.split(vector, [tensor.numel() for tensor in chosen.values()])
        moved = {name: piece.view(chosen[name].shape) for name, piece in zip(chosen, pieces, strict=True)}
        return loss(lambda x: torch.func.functional_call(model.eval(), moved, (x,)))

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        dense = torch.linalg.eigvalsh(torch.autograd.functional.hessian(at, flat))
    assert found.eigenvalues == pytest.approx(dense.flip(0)[:2].tolist(), rel=1e-3)

    level = curvature(torch.nn.Linear(3, 2), lambda model: model.weight.sum(), 2, trace_vectors=2).row()
    assert level.eigenvalues == (0.0, 0.0)
    assert level.trace == 0


def test_importing_its_package_warns_of_nothing(tmp_path, monkeypatch, recwarn):
    (tmp_path / "curvlinops.py").write_text("import warnings\nwarnings.warn('deprecated', FutureWarning)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "curvlinops")
    assert require_curvlinops().__file__ == str(tmp_path / "curvlinops.py")
    assert not recwarn.list


def test_the_mean_over_one_domain_is_not_computed_again():
    model, calls = torch.nn.Linear(4, 1), []

    def loss(model):
        calls.append(1)
        return {"photo": model.weight.pow(4).sum() + model.bias.square().sum()}

    both = curvature(model, loss, 2, trace_vectors=4)
    n_calls, row = len(calls), both.row("photo")
    assert [each.domain for each in both.rows] == ["photo", None]
    assert both.row(None) == replace(row, domain=None)
    assert n_calls == 1 + row.products


def test_domains_may_have_numbers_for_names():
    torch.manual_seed(0)
    data = {k: (torch.randn(6, 4), torch.arange(6) % 3) for k in (0, 1)}
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    rows = [
        curvature(model, image_losses(named, batch_size=4), 1, trace_vectors=2).rows
        for named in (data, {str(k): pair for k, pair in data.items()})
    ]
    assert rows[0] == rows[1]
    assert [row.domain for row in rows[0]] == ["0", "1", None]
    assert all(row.eigenvalues[0] > 0 for row in rows[0])


@pytest.mark.parametrize(
    "options",
    [{"trace_vectors": 0}, {"n_eigenvalues": 0}, {"n_eigenvalues": 0, "trace_vectors": 0, "density": True}],
)
def test_a_hessian_that_is_not_finite_is_named(options):
    with pytest.raises(ValueError, match="the Hessian is not finite at these weights"):
        curvature(nn.Linear(3, 2), lambda model: model.weight.exp().sum() * math.nan, **{"n_eigenvalues": 1, **options})
