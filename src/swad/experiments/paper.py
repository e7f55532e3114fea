"""The paper's figures as recipes: the runs each needs, and how it is measured and drawn from them.

    figure3   local flatness of ERM, SAM, SWA with cyclic and with constant rate, and SWAD, on seen and unseen domains
    figure4   the loss on the plane through three weights of ERM's trajectory, and its averages
    figure5   validation accuracy and loss of every source over training, with t_s and t_e

ERM, SWA with a constant rate and SWAD come from one training; the cyclic rate and SAM need their own. All figures
share their runs. On the embedded digits (the default) they take minutes on two cores; on PACS give `--data`.

>>> recipe = figure3(Setting("digits", Path("paper"), targets=("paper",)))
>>> [str(config.output) for config in recipe.configs]
['paper/digits/erm/paper-0', 'paper/digits/sam/paper-0', 'paper/digits/erm-cyclic/paper-0']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swad.data import benchmarks
from swad.experiments.flatness_report import Report, measure_flatness, measure_surfaces
from swad.experiments.launch import train_all
from swad.experiments.run_flatness import FlatnessConfig
from swad.results.figures.style import save_figure
from swad.results.figures.training import valleys_figure
from swad.results.page.build import write_page
from swad.results.runs import find_runs, load_run
from swad.results.tables import Table
from swad.training.config import RunConfig
from swad.util.progress import Progress

SNAPSHOTS = (50, 70, 90)
"""Percent of training at which the weights of Figure 4 are taken: updates 2500, 3500, 4500 of 5000."""

LIVE = "live"
"""Stands for the live weights that the user chose: best or last."""

METHODS = {
    "erm": ("erm", LIVE),
    "sam": ("sam", LIVE),
    "swa-cyclic": ("erm-cyclic", "swa"),
    "swa": ("erm", "swa"),
    "swad": ("erm", "swad"),
}
"""The methods of Figure 3: which run they come from, and which of its weights they are."""


@dataclass(frozen=True)
class Setting:
    """On what a figure is reproduced, how long, and how finely it is measured."""

    dataset: str
    output: Path
    data: Path | None = None
    targets: tuple[str, ...] = ()
    """Empty: every domain in turn."""
    trials: int = 1
    network: str | None = None
    weights: str | None = None
    steps: int | None = None
    device: str = "cpu"
    workers: int | None = None
    check_counts: bool = True
    methods: tuple[str, ...] = ()
    """Of Figure 3; empty: all five."""
    live_weights: str = "best"
    """Live weights of ERM and SAM: those with the best source validation accuracy (best), or the last ones (last)."""
    radii: tuple[float, ...] | None = None
    directions: int = 100
    images: int | None = 200
    grid: int = 21
    formats: tuple[str, ...] | list[str] = ("svg", "pdf", "png")

    @property
    def folder(self) -> Path:
        """Where the runs of this dataset lie."""
        return self.output / benchmarks.get(self.dataset).name


@dataclass(frozen=True)
class Recipe:
    """A figure: the runs that it needs, and a function that measures and draws it once they are finished."""

    configs: tuple[RunConfig, ...]
    draw: Callable[[Progress | None], Report]


def figure3(setting: Setting) -> Recipe:
    """Local flatness against the radius, per target and on average."""
    chosen = setting.methods or tuple(METHODS)
    unknown = [name for name in chosen if name not in METHODS]
    if unknown:
        raise ValueError(f"the methods of Figure 3 are {', '.join(METHODS)}; got {', '.join(unknown)}")
    if setting.live_weights not in ("best", "last"):
        raise ValueError(f"--live-weights must be best or last, got {setting.live_weights!r}")
    wanted: dict[str, list[str]] = {}
    for name in METHODS:
        if name in chosen:
            kind, weights = METHODS[name]
            wanted.setdefault(kind, []).append(setting.live_weights if weights == LIVE else weights)
    by_kind = {kind: _configs(setting, kind) for kind in wanted}
    weights_of = {config.output: wanted[kind] for kind, configs in by_kind.items() for config in configs}

    def draw(progress: Progress | None) -> Report:
        return measure_flatness(
            weights_of,
            FlatnessConfig(setting.radii, setting.directions, setting.images),
            output=_figures(setting),
            stem="figure3",
            formats=setting.formats,
            device=setting.device,
            workers=setting.workers,
            data=setting.data,
            progress=progress,
        )

    return Recipe(tuple(config for configs in by_kind.values() for config in configs), draw)


def figure4(setting: Setting) -> Recipe:
    """Loss surfaces through three weights of the trajectory, seen above unseen, a column for each target."""
    configs = _configs(setting, "erm")

    def draw(progress: Progress | None) -> Report:
        return measure_surfaces(
            [config.output for config in configs],
            steps=setting.grid,
            n_images=setting.images,
            output=_figures(setting),
            stem="figure4",
            formats=setting.formats,
            device=setting.device,
            workers=setting.workers,
            data=setting.data,
            progress=progress,
        )

    return Recipe(configs, draw)


def figure5(setting: Setting) -> Recipe:
    """Validation accuracy and loss of every source over training, with t_s and t_e, a column for each target."""
    configs = _configs(setting, "erm")

    def draw(progress: Progress | None) -> Report:
        written = []
        for trial in range(setting.trials):
            runs = [load_run(config.output) for config in configs if config.data.trial == trial]
            drawn = valleys_figure(runs, "swad", ("accuracy", "loss"))
            stem = "figure5" if setting.trials == 1 else f"figure5-trial{trial}"
            written += [save_figure(drawn, _figures(setting) / f"{stem}.{kind}") for kind in setting.formats]
        return Report((), tuple(written))

    return Recipe(configs, draw)


RECIPES: dict[str, Callable[[Setting], Recipe]] = {"figure3": figure3, "figure4": figure4, "figure5": figure5}


def reproduce(
    what: str, setting: Setting, jobs: int = 1, progress: Progress | None = None
) -> tuple[tuple[Table | str, ...], list[Path]]:
    """Train the missing runs of a figure, measure and draw it, and write the report page of its runs.

    Returns the tables of the measurement and the files that were written.
    """
    if what not in RECIPES:
        raise ValueError(f"there is no recipe for {what!r}; there are {', '.join(RECIPES)}")
    recipe = RECIPES[what](setting)
    train_all(recipe.configs, jobs)
    report = recipe.draw(progress)
    found = find_runs(setting.folder)
    # A cyclic rate is a method of its own: in the table its SWA would compete with the constant one's for one row.
    plain = [run for run in found if run.config.get("lr_schedule") != "cyclic"] or [
        load_run(config.output) for config in recipe.configs
    ]
    page = write_page(plain, setting.output / "report.html", flatness=found)
    return report.tables, [*report.written, page]


def _figures(setting: Setting) -> Path:
    return setting.output / "figures" / benchmarks.get(setting.dataset).name


def _configs(setting: Setting, kind: str) -> tuple[RunConfig, ...]:
    """The runs of one kind: a plain trajectory with its averages, SAM, or a cyclic learning rate."""
    benchmark = benchmarks.get(setting.dataset)
    targets: Sequence[str] = setting.targets or benchmark.domains
    if not targets:
        targets = benchmarks.load(setting.dataset, setting.data).domain_names
    steps = setting.steps or benchmark.defaults.steps
    marks = tuple(sorted({max(1, steps * share // 100) for share in SNAPSHOTS}))
    return tuple(
        RunConfig.from_options(
            dataset=setting.dataset,
            target=target,
            output=setting.folder / kind / f"{target}-{trial}",
            data_dir=setting.data,
            check_counts=setting.check_counts,
            trial=trial,
            algorithm="sam" if kind == "sam" else "erm",
            network=setting.network,
            weights=setting.weights,
            steps=setting.steps,
            lr_schedule="cyclic" if kind == "erm-cyclic" else "constant",
            averages={"erm": ("swad", "swa"), "sam": (), "erm-cyclic": ("swa",)}[kind],
            snapshots=marks if kind == "erm" else (),
            device=setting.device,
            workers=setting.workers,
        )
        for trial in range(setting.trials)
        for target in targets
    )
