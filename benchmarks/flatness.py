"""Measure the time of one evaluation of perturbed weights, and check that it equals the obvious implementation.

    python benchmarks/flatness.py                          # the CPU: a small network
    python benchmarks/flatness.py --device cuda --json benchmarks/results/flatness-h200.json
    python benchmarks/flatness.py --device cuda --network resnet50 --ours   # images per second, fp32 and bf16

The obvious implementation copies the model, adds the direction to the copy, and evaluates it on all images: batch by
batch from a DataLoader, with `.item()` after each. It gets its directions and decoded images for free; a loader of
files would decode them again for each of the paper's 1,200 evaluations. Two rows remove the overhead of the loader.
Ours is `swad.flatness.local`, including rows and intervals; on a GPU also with the evaluation captured in a CUDA graph.

The network has random weights, with batch-norm statistics fitted to the images, which are noise. Before the timing,
all contenders must give the same losses in the same directions at every radius (TF32 off; the difference of lower
precision is reported, not asserted). Contenders are timed in interleaved rounds, and medians are reported. The obvious
ones use few directions, because each direction takes the same time. "Forward" is the time of the forward passes alone:
the rest of the time is overhead.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import swad
from measurements import header, make_parser, wait, write
from swad.flatness import captured, image_losses, local
from swad.flatness.directions import Directions
from swad.flatness.weights import Weights

OBVIOUS = "deepcopy, add, DataLoader"
RADII = (5.0, 10.0, 20.0, 40.0)
FEW = 2
"""Number of directions that the obvious contenders evaluate."""
SAME = 1e-3
"""Largest relative difference of a loss that counts as equal; the table shows the measured one."""

Images = dict[str, tuple[Tensor, Tensor]]


@dataclass
class Setup:
    """The model, images and radii that all contenders share."""

    model: nn.Module
    images: Images
    batch_size: int
    n_directions: int
    radii: tuple[float, ...]
    device: str
    compiled: bool = False
    ours: bool = False

    def __post_init__(self) -> None:
        self.resident = {name: (x.to(self.device), y.to(self.device)) for name, (x, y) in self.images.items()}
        with Weights(self.model) as weights:
            drawn = Directions(weights, 0, antithetic=True, normalize="sphere")
            self.directions = [[tensor.clone() for tensor in drawn[k]] for k in range(FEW)]


@dataclass
class Contender:
    """`run` returns losses by domain (directions x radii); `forward` evaluates `at_once` unperturbed weights."""

    run: Callable[[], dict[str, Tensor]]
    forward: Callable[[], object]
    directions: int = FEW
    at_once: int = 1
    exact: bool = True


# --- the obvious way ------------------------------------------------------------------------------------------------


Batches = dict[str, Callable[[], Iterable[tuple[Tensor, Tensor]]]]


def from_loader(images: Images, batch_size: int) -> Batches:
    """Return a DataLoader for each domain, as in a training script."""
    loaders = {name: DataLoader(TensorDataset(*pair), batch_size) for name, pair in images.items()}
    return {name: lambda loader=loader: loader for name, loader in loaders.items()}


def sliced(images: Images, batch_size: int) -> Batches:
    """Return slices of one tensor for each domain, which need no copy on the host."""
    return {
        name: lambda x=x, y=y: zip(x.split(batch_size), y.split(batch_size), strict=True)
        for name, (x, y) in images.items()
    }


@torch.no_grad()
def evaluate(model: nn.Module, batches: Batches, device: str) -> dict[str, float]:
    means = {}
    for name, domain_batches in batches.items():
        total, n = 0.0, 0
        for x, y in domain_batches():
            total += functional.cross_entropy(model(x.to(device)), y.to(device), reduction="sum").item()
            n += len(y)
        means[name] = total / n
    return means


def obvious(setup: Setup, images: Batches) -> Contender:
    def run() -> dict[str, Tensor]:
        model = setup.model
        evaluate(model, images, setup.device)
        losses: dict[str, list[list[float]]] = {name: [] for name in images}
        for direction in setup.directions:
            rows: dict[str, list[float]] = {name: [] for name in images}
            for radius in setup.radii:
                twin = copy.deepcopy(model)
                with torch.no_grad():
                    for parameter, tensor in zip(twin.parameters(), direction, strict=True):
                        parameter.add_(radius * tensor)
                for name, loss in evaluate(twin, images, setup.device).items():
                    rows[name].append(loss)
            for name, row in rows.items():
                losses[name].append(row)
        return {name: torch.tensor(table, dtype=torch.float64) for name, table in losses.items()}

    return Contender(run, lambda: evaluate(setup.model, images, setup.device))


def vectorized(setup: Setup) -> Contender:
    """All radii of a direction at once, by vmap over the weights: convolutions become grouped ones."""
    model = setup.model
    names = [name for name, _ in model.named_parameters()]

    def forward(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, (weights, buffers), (x,))

    many = vmap(forward, in_dims=(0, None, None))
    buffers = dict(model.named_buffers())

    @torch.no_grad()
    def losses_of(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        means = {}
        for name, (pictures, labels) in setup.resident.items():
            losses = []
            for x, y in zip(pictures.split(setup.batch_size), labels.split(setup.batch_size), strict=True):
                scores = many(weights, buffers, x)
                losses.append(torch.stack([functional.cross_entropy(row, y, reduction="none") for row in scores]))
            means[name] = torch.cat(losses, 1).double().mean(1)
        return means

    def run() -> dict[str, Tensor]:
        evaluate(model, sliced(setup.resident, setup.batch_size), setup.device)
        radii = torch.tensor(setup.radii, device=setup.device)
        rows = []
        for direction in setup.directions:
            moved = {
                name: parameter.detach() + radii.view(-1, *[1] * parameter.ndim) * tensor
                for name, parameter, tensor in zip(names, model.parameters(), direction, strict=True)
            }
            rows.append(losses_of(moved))
        return {name: torch.stack([row[name] for row in rows]).cpu() for name in setup.resident}

    stacked, _ = stack_module_state([model] * len(setup.radii))
    return Contender(run, lambda: losses_of(stacked), at_once=len(setup.radii))


# --- ours -----------------------------------------------------------------------------------------------------------


def ours(
    setup: Setup, graph: bool, channels_last: bool = False, bf16: bool = False, compiled: bool = False
) -> Contender:
    model = setup.model
    if channels_last:
        model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    if compiled:
        model.compile()
    precision = "bf16" if bf16 else None
    loss = image_losses(setup.resident, batch_size=setup.batch_size, precision=precision, channels_last=channels_last)
    loss_fn = captured(loss, model) if graph else loss

    def run() -> dict[str, Tensor]:
        flat = local(model, loss_fn, setup.radii, setup.n_directions)
        assert flat.rows  # computes the intervals
        return flat.losses

    @torch.no_grad()
    def forward() -> None:
        loss_fn(model)

    contender = Contender(run, forward, setup.n_directions, exact=not bf16)
    if graph:
        run()
        assert loss_fn.reason is None, loss_fn.reason
    return contender


def contenders(setup: Setup) -> dict[str, Contender]:
    size, gpu = setup.batch_size, setup.device == "cuda"
    rows = {OBVIOUS: obvious(setup, from_loader(setup.images, size))}
    if not setup.ours:
        rows["the same, images in one tensor"] = obvious(setup, sliced(setup.images, size))
        if gpu:
            rows["the same, images on the device"] = obvious(setup, sliced(setup.resident, size))
        rows["vmap over weights"] = vectorized(setup)
        rows["swad.flatness.local"] = ours(setup, graph=False)
    if gpu:
        if not setup.ours:
            rows["... captured"] = ours(setup, graph=True)
        rows["... captured, channels last"] = ours(setup, graph=True, channels_last=True)
        if setup.compiled:
            rows["... captured, channels last, compiled"] = ours(setup, graph=True, channels_last=True, compiled=True)
        rows["... captured, channels last, bf16, fused"] = ours(setup, graph=True, channels_last=True, bf16=True)
    return rows


# --- measuring ------------------------------------------------------------------------------------------------------


def differences(setup: Setup) -> dict[str, float]:
    """Return the largest relative difference of any loss from the obvious one, in full single precision."""
    with exact():
        made = contenders(setup)
        expected = made[OBVIOUS].run()
        difference = {}
        for name, contender in made.items():
            losses = contender.run()
            difference[name] = max(
                ((losses[domain][:FEW] - expected[domain]).abs() / expected[domain].abs()).max().item()
                for domain in expected
            )
            assert not contender.exact or difference[name] < SAME, f"{name} differs by {difference[name]:.2g}"
    return difference


@contextmanager
def exact() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def seconds(function: Callable[[], object], device: str) -> float:
    wait(device)
    start = time.perf_counter()
    function()
    wait(device)
    return time.perf_counter() - start


def measure(setup: Setup, rounds: int) -> dict[str, dict[str, object]]:
    """Return milliseconds per evaluation and per forward pass, and peak memory."""
    same = differences(setup)
    made = contenders(setup)
    peaks = {}
    for name, contender in made.items():  # the warm-up
        if setup.device == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        contender.run()
        contender.forward()
        if setup.device == "cuda":
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    whole: dict[str, list[float]] = {name: [] for name in made}
    forward: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, contender in made.items():
            evaluations = 1 + contender.directions * len(setup.radii)
            whole[name].append(seconds(contender.run, setup.device) / evaluations)
            forward[name] += [seconds(contender.forward, setup.device) / contender.at_once for _ in range(3)]
    rows: dict[str, dict[str, object]] = {}
    n_images = sum(len(labels) for _, labels in setup.images.values())
    for name in made:
        ms, alone = statistics.median(whole[name]) * 1e3, statistics.median(forward[name]) * 1e3
        rows[name] = {
            "ms": ms,
            "times_faster": statistics.median(whole[OBVIOUS]) * 1e3 / ms,
            "forward_ms": alone,
            "forward_share": alone / ms,
            "images_per_second": n_images / ms * 1e3,
            "difference": same[name],
            "peak_mib": peaks.get(name),
        }
    return rows


def prepare(arguments: argparse.Namespace, device: str) -> Setup:
    torch.manual_seed(0)
    small = arguments.network == "small"
    size = 28 if small else arguments.size
    n = arguments.images or (480 if device == "cpu" else 512)
    if small:
        from swad.testbed.models.networks import build

        model = build("small", 10, channels=3, freeze_bn=False)
    else:
        import timm

        model = timm.create_model(arguments.network, pretrained=False, num_classes=7)
    sizes = {"seen": n - n // 4, "unseen": n // 4}
    images = {name: (torch.randn(k, 3, size, size), torch.randint(7, (k,))) for name, k in sizes.items()}
    model = model.to(device).eval()
    swad.update_bn([x.to(device) for pictures, _ in images.values() for x in pictures.split(128)], model)
    return Setup(
        model,
        images,
        arguments.batch_size,
        arguments.directions,
        arguments.radii,
        device,
        arguments.compile,
        arguments.ours,
    )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--network", help="small or a timm model. Default: small on a CPU, mobilenetv2_100 on a GPU")
    parser.add_argument("--images", type=int, help="number of images. Default: 480 on a CPU, 512 on a GPU")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--directions", type=int, help="number of directions. Default: 8 on a CPU, 16 on a GPU")
    parser.add_argument("--radii", type=lambda text: tuple(map(float, text.split(","))), default=RADII)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--compile", action="store_true", help="on a GPU, also measure the compiled network, which takes a minute more"
    )
    parser.add_argument("--ours", action="store_true", help="only the first obvious contender and the fastest of ours")
    arguments = parser.parse_args()
    device = arguments.device
    arguments.network = arguments.network or ("small" if device == "cpu" else "mobilenetv2_100")
    arguments.directions = arguments.directions or (8 if device == "cpu" else 16)
    setup = prepare(arguments, device)
    rows = measure(setup, arguments.rounds)
    n = sum(len(labels) for _, labels in setup.images.values())
    shape = "×".join(map(str, next(iter(setup.images.values()))[0].shape[1:]))
    weights = sum(p.numel() for p in setup.model.parameters()) / 1e6
    print(
        f"{device}: {arguments.network}, {weights:.1f} M parameters, {n} images of {shape}, batches of "
        f"{arguments.batch_size}, {setup.n_directions} directions (obvious ones: {FEW}), {len(setup.radii)} radii, "
        f"{torch.get_num_threads()} CPU threads, torch {torch.__version__}"
    )
    print(
        f"\n{'per evaluation':36}{'ms':>9}{'images/s':>10}{'× faster':>10}{'forward ms':>12}{'share':>8}{'differs':>10}"
        f"{'peak MiB':>10}"
    )
    for name, row in rows.items():
        peak = f"{row['peak_mib']:10.0f}" if row["peak_mib"] is not None else ""
        print(
            f"{name:36}{row['ms']:9.2f}{row['images_per_second']:10,.0f}{row['times_faster']:10.2f}{row['forward_ms']:12.2f}"
            f"{row['forward_share']:8.0%}{row['difference']:10.1e}{peak}"
        )
    report = {
        **header(),
        "network": arguments.network,
        "images": n,
        "image": shape,
        "batch_size": arguments.batch_size,
        "directions": setup.n_directions,
        "radii": list(setup.radii),
        "rows": rows,
    }
    write(report, arguments.json)


if __name__ == "__main__":
    main()
