"""Settings of a reproduction: the available datasets, the scale, and how finely to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from swad.flatness import check_radii
from swad.testbed.data import benchmarks
from swad.testbed.data.benchmark import Benchmark
from swad.testbed.experiments.sweep import checks
from swad.testbed.experiments.sweep.spec import DATASETS, SweepSpec
from swad.testbed.training.config import ConfigError
from swad.util.images import DataError
from swad.util.names import choice_problem

PAPER_DATASETS = DATASETS["paper"]
"""The datasets of the paper in its order."""

STAND_IN = "digits"
"""The embedded dataset that the scales small and smoke train on. It has columns of its own."""

Scale = Literal["full", "small", "smoke"]
Protocol = Literal["printed", "paper", "domainbed", "defaults"]


@dataclass(frozen=True)
class PaperConfig:
    """Data, length of training and resolution of all items.

    Args:
        output: Directory of all runs, tables and figures.
        scale: full: the paper's datasets at full length. small: the embedded digits, minutes for an item on two cores.
            smoke: the digits, a few steps on one target, seconds.
        datasets: Available datasets, by name. Those that are not the paper's get columns of their own.
        data: Directory of the datasets; embedded datasets need none.
        targets: Domains to hold out. Empty: each domain in turn.
        trials: Numbers of the train-validation splits.
        protocol: How hyperparameters are searched. printed: each row with the search behind the printed number. paper
            or domainbed: every row but SWAD's with that search. defaults: no search.
        network: timm model, or `small`. None: the dataset's default.
        weights: Initial weights: pretrained, random or a safetensors file.
        steps: Optimizer steps of a run. None: the dataset's default.
        evaluate_every: Steps between evaluations. None: the dataset's default.
        device: Device to train and measure on; `auto` is resolved on the machine that does it.
        workers: Processes that load images.
        check_counts: Whether image counts must be the published ones.
        methods: Methods of Figure 3. Empty: all.
        live_weights: Live weights in figures: those of the best validation accuracy (`best`), or the `last` ones.
        radii: Radii of flatness measurements. None: the network's default.
        directions: Number of random directions of flatness measurements.
        images: Images per domain to measure on. None: all.
        grid: Grid points per side of loss surfaces.
        formats: File formats of the figures.
        runs: Directory of runs on ImageNet, for Table 6.
    """

    output: Path
    scale: Scale = "full"
    datasets: tuple[str, ...] = (STAND_IN,)
    data: Path | None = None
    targets: tuple[str, ...] = ()
    trials: tuple[int, ...] = (0, 1, 2)
    protocol: Protocol = "printed"
    network: str | None = None
    weights: str | None = None
    steps: int | None = None
    evaluate_every: int | None = None
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
    runs: Path | None = None

    def measured_datasets(self, of_item: Sequence[str]) -> tuple[str, ...]:
        """Datasets to train an item on: stand-ins first, then the available ones of the paper, in its order."""
        others = [name for name in self.datasets if name not in PAPER_DATASETS]
        return (*others, *(name for name in of_item if name in self.datasets))

    def targets_of(self, dataset: str) -> tuple[str, ...]:
        """The domains of a dataset to hold out."""
        domains = benchmarks.get(dataset).domains
        if not domains:
            domains = benchmarks.load(dataset, self.data).domain_names
        return tuple(name for name in domains if not self.targets or name in self.targets)

    def steps_of(self, dataset: str) -> int:
        """Optimizer steps of a run on a dataset."""
        return self.steps or benchmarks.get(dataset).defaults.steps

    def evaluate_every_of(self, dataset: str) -> int:
        """Steps between evaluations on a dataset."""
        return self.evaluate_every or benchmarks.get(dataset).defaults.evaluate_every_in(self.steps_of(dataset))


DEFAULTS: dict[str, dict[str, Any]] = {
    # On the digits the validation loss rises after about 100 steps, so 300 show the whole valley.
    "small": {
        "trials": (0, 1),
        "protocol": "defaults",
        "steps": 300,
        "evaluate_every": 10,
        "directions": 20,
        "images": 100,
    },
    # On this target the loss has its first minimum after 4 steps, so that SWAD averages a few weights.
    "smoke": {
        "trials": (0,),
        "protocol": "defaults",
        "targets": ("board",),
        "steps": 7,
        "evaluate_every": 1,
        "directions": 4,
        "images": 10,
        "grid": 3,
        "radii": (0.0, 5.0),
    },
}
"""What an option is where the user does not set it, by scale, if it is not that of `PaperConfig`."""

OUTPUTS = {"full": Path("paper"), "small": Path("paper-small"), "smoke": Path("paper-smoke")}


def make_config(
    *,
    scale: str | None = None,
    data: Path | None = None,
    datasets: Sequence[str] | None = None,
    output: Path | None = None,
    **options: Any,
) -> PaperConfig:
    """Fill in the scale's defaults, find the available datasets, and check everything.

    Args:
        scale: full, small or smoke. None: full with `data`, `datasets` or `runs`, else small.
        data: Directory of the datasets.
        datasets: Names of datasets. None: the paper's that are in `data`; the digits for small and smoke.
        output: Directory of all results. None: `paper`, `paper-small` or `paper-smoke`.
        options: Arguments of `PaperConfig`. None and () are the scale's default.
    """
    chosen = scale or ("full" if data is not None or datasets or options.get("runs") else "small")
    values = {**DEFAULTS.get(chosen, {}), **{name: value for name, value in options.items() if value not in (None, ())}}
    if datasets:
        names: tuple[str, ...] = tuple(dict.fromkeys(map(_spelling, datasets)))
    else:
        names = find_datasets(data) if chosen == "full" else (STAND_IN,)
    if list(names) != [STAND_IN] and not options.get("targets"):  # the scale's target is a domain of the digits
        values.pop("targets", None)
    if "trials" in values:
        values["trials"] = tuple(sorted(set(values["trials"])))  # the first is that of searches and figures
    if values.get("images") == 0:
        values["images"] = None  # all
    config = PaperConfig(output or OUTPUTS.get(chosen, Path("paper")), chosen, names, data, **values)  # type: ignore[arg-type]
    problems = config_problems(config)
    if problems:
        raise ConfigError(problems)
    return config


def _spelling(dataset: str) -> str:
    """Spell a dataset as its file does; a name that does not exist is reported with the other problems.

    >>> _spelling("office_home"), _spelling("offise_home")
    ('OfficeHome', 'offise_home')
    """
    try:
        return benchmarks.get(dataset).name
    except DataError:
        return dataset


def find_datasets(root: Path | None) -> tuple[str, ...]:
    """Return the paper's datasets that are in a directory, or that the directory is."""
    if root is None:
        return ()
    if not root.is_dir():
        raise DataError(f"--data must be a directory, got {root}: check the path")
    return tuple(name for name in PAPER_DATASETS if _is_there(benchmarks.get(name), root))


def _is_there(benchmark: Benchmark, root: Path) -> bool:
    """Whether all domains are there: some datasets share the names of single domains."""
    for folder in (root / benchmark.folder, root):
        if folder.is_dir():
            present = {benchmark.aliases.get(entry.name, entry.name) for entry in folder.iterdir() if entry.is_dir()}
            if present.issuperset(benchmark.domains):
                return True
    return False


def config_problems(config: PaperConfig) -> list[str]:
    """Return what is wrong with the request, one sentence each."""
    problems = []
    for option, value, known in (
        ("scale", config.scale, get_args(Scale)),
        ("protocol", config.protocol, get_args(Protocol)),
    ):
        if value not in known:
            problems.append(choice_problem(f"--{option}", value, known))
    if config.datasets:
        problems += _run_problems(config)
    elif config.runs is None:
        found = "no --data was given" if config.data is None else f"{config.data} has none"
        problems.append(
            f"a dataset of the paper is needed ({', '.join(PAPER_DATASETS)}), but {found}: give the directory that "
            "contains them (--data), or use --scale small"
        )
    if config.radii is not None:
        try:
            check_radii(config.radii)
        except ValueError as error:
            problems.append(str(error))
    if config.live_weights not in ("best", "last"):
        problems.append(f"--live-weights must be best or last, got {config.live_weights!r}")
    return problems


def _run_problems(config: PaperConfig) -> list[str]:
    """Return what is wrong with the settings of all runs, which are those of a sweep, and with the data."""
    names = ("network", "weights", "steps", "evaluate_every", "device", "workers", "check_counts")
    options = {name: value for name in names if (value := getattr(config, name)) is not None}
    spec = SweepSpec(
        datasets=config.datasets, targets=config.targets, trials=config.trials, data=config.data, options=options
    )
    problems = []
    try:
        spec = spec if config.data is None else spec.with_domains()
    except DataError as error:
        problems.append(str(error))
    missing = checks.data_problems(spec)
    of_paper = [name for name in config.datasets if name in PAPER_DATASETS and name not in missing]
    found = find_datasets(config.data) if of_paper else ()
    problems += [*checks.find_problems(spec), *missing.values()]
    problems += [
        f"dataset {name} is not in {config.data}: `swad datasets download {name}`"
        for name in of_paper
        if name not in found
    ]
    return list(dict.fromkeys(problems))
