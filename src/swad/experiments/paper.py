"""Figures of the paper: the runs that each needs, and how it is measured and drawn from them.

    figure3   local flatness of ERM, SAM, SWA with cyclic and with constant learning rate, and SWAD, on seen and
              unseen domains
    figure4   the loss on the plane through three weights of ERM's trajectory, and its averages
    figure5   validation accuracy and loss of every source over training, with t_s and t_e

ERM, SWA with a constant learning rate and SWAD come from one training; SAM and the cyclic learning rate need their
own. The figures share their runs. On the embedded digits (the default) a figure takes minutes on two cores.

>>> plan = figure3(FigureConfig("digits", Path("paper"), targets=("paper",)))
>>> [str(config.output) for config in plan.configs]
['paper/digits/erm/paper-0', 'paper/digits/sam/paper-0', 'paper/digits/erm-cyclic/paper-0']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swad.data import benchmarks
from swad.experiments.flatness_report import Report, measure_flatness, measure_surfaces
from swad.experiments.launchers.train_all import train_all
from swad.experiments.run_flatness import FlatnessConfig
from swad.results.figures.style import require_matplotlib, save_figure
from swad.results.figures.training import valleys_figure
from swad.results.page.build import write_page
from swad.results.runs import RunList, find_runs, load_run
from swad.training.config import RunConfig
from swad.util.progress import Progress

SNAPSHOTS = tuple(range(10, 101, 5))
"""Percent of training at which weights are saved, so that three of them are in the range that SWAD averages."""

LIVE = "live"
"""Placeholder in METHODS for the live weights that the user chose: best or last."""


@dataclass(frozen=True)
class Training:
    """How the runs of one kind are trained. Their directory is named after the key in TRAININGS."""

    algorithm: str = "erm"
    lr_schedule: str = "constant"
    averages: tuple[str, ...] = ()
    snapshots: bool = False


TRAININGS = {
    "erm": Training(averages=("swad", "swa"), snapshots=True),
    "sam": Training(algorithm="sam"),
    "erm-cyclic": Training(lr_schedule="cyclic", averages=("swa",)),
}

METHODS = {
    "erm": ("erm", LIVE),
    "sam": ("sam", LIVE),
    "swa-cyclic": ("erm-cyclic", "swa"),
    "swa": ("erm", "swa"),
    "swad": ("erm", "swad"),
}
"""The methods of Figure 3: the training that each comes from, and which of its weights it is."""


@dataclass(frozen=True)
class FigureConfig:
    """Data, length of training and resolution of a figure.

    Args:
        dataset: Name of a dataset.
        output: Directory for runs, figures and the report page.
        data: Directory of the dataset; embedded datasets need none.
        targets: Domains to hold out. Empty: each domain in turn.
        trials: Number of train-validation splits.
        network: timm model, or `small`. None: the dataset's default.
        weights: Initial weights: pretrained, random or a safetensors file.
        steps: Optimizer steps of a run. None: the dataset's default.
        device: Device to train and measure on.
        workers: Processes that load images.
        check_counts: Whether image counts must be the published ones.
        methods: Methods of Figure 3. Empty: all of METHODS.
        live_weights: Live weights of ERM and SAM: those of the best validation accuracy (`best`), or the `last` ones.
        radii: Radii of Figure 3. None: the network's default.
        directions: Number of random directions of Figure 3.
        images: Images per domain for Figures 3 and 4. None: all.
        grid: Grid points per side of Figure 4.
        formats: File formats of the figures.
    """

    dataset: str
    output: Path
    data: Path | None = None
    targets: tuple[str, ...] = ()
    trials: int = 1
    network: str | None = None
    weights: str | None = None
    steps: int | None = None
    device: str = "cpu"
    workers: int | None = None
    check_counts: bool = True
    methods: tuple[str, ...] = ()
    live_weights: str = "best"
    radii: tuple[float, ...] | None = None
    directions: int = 100
    images: int | None = 200
    grid: int = 21
    formats: Sequence[str] = ("svg", "pdf", "png")

    @property
    def runs_dir(self) -> Path:
        """Directory of the dataset's runs."""
        return self.output / benchmarks.get(self.dataset).name

    @property
    def figures_dir(self) -> Path:
        """Directory of the dataset's figures."""
        return self.output / "figures" / benchmarks.get(self.dataset).name


@dataclass(frozen=True)
class FigurePlan:
    """The runs that a figure needs, and a function that measures and draws it once they are finished."""

    configs: tuple[RunConfig, ...]
    draw: Callable[[Progress | None], Report]


def figure3(figure: FigureConfig) -> FigurePlan:
    """Plan Figure 3: local flatness against the radius, per target and on average."""
    methods = figure.methods or tuple(METHODS)
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise ValueError(f"the methods of Figure 3 are {', '.join(METHODS)}; got {', '.join(unknown)}")
    if figure.live_weights not in ("best", "last"):
        raise ValueError(f"--live-weights must be best or last, got {figure.live_weights!r}")
    weights_by_training: dict[str, list[str]] = {}
    for method, (training, weights) in METHODS.items():
        if method in methods:
            name = figure.live_weights if weights == LIVE else weights
            weights_by_training.setdefault(training, []).append(name)
    configs = {training: _configs(figure, training) for training in weights_by_training}
    weights_by_run = {config.output: weights_by_training[name] for name in configs for config in configs[name]}

    def draw(progress: Progress | None) -> Report:
        return measure_flatness(
            weights_by_run,
            FlatnessConfig(figure.radii, figure.directions, figure.images),
            output=figure.figures_dir,
            stem="figure3",
            formats=figure.formats,
            device=figure.device,
            workers=figure.workers,
            data=figure.data,
            progress=progress,
        )

    return FigurePlan(tuple(config for name in configs for config in configs[name]), draw)


def figure4(figure: FigureConfig) -> FigurePlan:
    """Plan Figure 4: loss surfaces through three weights of the trajectory, a column for each target."""
    configs = _configs(figure, "erm")

    def draw(progress: Progress | None) -> Report:
        return measure_surfaces(
            [config.output for config in configs],
            steps=figure.grid,
            n_images=figure.images,
            output=figure.figures_dir,
            stem="figure4",
            formats=figure.formats,
            device=figure.device,
            workers=figure.workers,
            data=figure.data,
            progress=progress,
        )

    return FigurePlan(configs, draw)


def figure5(figure: FigureConfig) -> FigurePlan:
    """Plan Figure 5: validation accuracy and loss of every source over training, a column for each target."""
    configs = _configs(figure, "erm")

    def draw(progress: Progress | None) -> Report:
        written = []
        for trial in range(figure.trials):
            runs = [load_run(config.output) for config in configs if config.data.trial == trial]
            drawing = valleys_figure(runs, "swad", ("accuracy", "loss"))
            stem = "figure5" if figure.trials == 1 else f"figure5-trial{trial}"
            written += [save_figure(drawing, figure.figures_dir / f"{stem}.{suffix}") for suffix in figure.formats]
        return Report((), tuple(written))

    return FigurePlan(configs, draw)


FIGURES: dict[str, Callable[[FigureConfig], FigurePlan]] = {
    "figure3": figure3,
    "figure4": figure4,
    "figure5": figure5,
}


def reproduce(name: str, figure: FigureConfig, jobs: int = 1, progress: Progress | None = None) -> Report:
    """Train the missing runs of a figure, measure and draw it, and write the report page of its runs.

    Args:
        name: Key of FIGURES.
        figure: Data, length of training and resolution.
        jobs: Number of runs that train at the same time.
        progress: Called after every evaluation of the measurement.
    """
    if name not in FIGURES:
        raise ValueError(f"the figures that can be reproduced are {', '.join(FIGURES)}; got {name!r}")
    require_matplotlib()  # before training for hours
    plan = FIGURES[name](figure)
    train_all(plan.configs, jobs)
    report = plan.draw(progress)
    runs = find_runs(figure.runs_dir)
    # The table would choose between SWA with cyclic and with constant learning rate, which are two methods.
    constant_lr_runs = [run for run in runs if run.config.get("lr_schedule") != "cyclic"]
    page_runs = constant_lr_runs or [load_run(config.output) for config in plan.configs]
    page = write_page(RunList(page_runs, runs.skipped), figure.output / "report.html", flatness=runs)
    return Report(report.tables, (*report.written, page), report.row_files)


def _configs(figure: FigureConfig, name: str) -> tuple[RunConfig, ...]:
    """The runs of the named training: one for each trial and target."""
    training, benchmark = TRAININGS[name], benchmarks.get(figure.dataset)
    targets: Sequence[str] = figure.targets or benchmark.domains
    if not targets:
        targets = benchmarks.load(figure.dataset, figure.data).domain_names
    steps = figure.steps or benchmark.defaults.steps
    snapshots = tuple(sorted({max(1, steps * percent // 100) for percent in SNAPSHOTS}))
    return tuple(
        RunConfig.from_options(
            dataset=figure.dataset,
            target=target,
            output=figure.runs_dir / name / f"{target}-{trial}",
            data_dir=figure.data,
            check_counts=figure.check_counts,
            trial=trial,
            algorithm=training.algorithm,
            network=figure.network,
            weights=figure.weights,
            steps=figure.steps,
            lr_schedule=training.lr_schedule,
            averages=training.averages,
            snapshots=snapshots if training.snapshots else (),
            device=figure.device,
            workers=figure.workers,
        )
        for trial in range(figure.trials)
        for target in targets
    )
