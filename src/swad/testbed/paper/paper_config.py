"""Settings of a reproduction: the available datasets, the scale, and how finely to measure.

The fields of `PaperConfig` are the options of `swad reproduce`, so this module imports nothing heavy at its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from swad.testbed.sweep.spec import DATASETS, SweepSpec
from swad.testbed.training.config import SETTINGS, ConfigError
from swad.testbed.training.setting import add_args, setting, settings_of
from swad.util.names import choice_problem

if TYPE_CHECKING:
    from swad.testbed.data.benchmark import Benchmark

PAPER_DATASETS = DATASETS["paper"]
"""The datasets of the paper in its order."""

STAND_IN = "digits"
"""The embedded dataset that the scales small and smoke train on. It has columns of its own."""

RUN_SETTINGS = ("network", "weights", "steps", "evaluate_every", "device", "workers", "check_counts")
"""The fields of `PaperConfig` that are settings of the runs."""

Scale = Literal["full", "small", "smoke"]
Protocol = Literal["printed", "paper", "domainbed", "defaults"]


@dataclass(frozen=True)
class PaperConfig:
    """Data, length of training and resolution of all items."""

    output: Path = setting(
        help="Directory of all runs, tables and figures. Default: paper, paper-small or paper-smoke."
    )
    scale: Scale = setting(
        "full",
        help="full: the paper's datasets in --data. small: the embedded digits, minutes. smoke: a few steps, "
        "seconds. Default: full with --data, else small.",
    )
    datasets: tuple[str, ...] = setting(
        (STAND_IN,), help="Datasets to train on. Default: the paper's datasets in --data."
    )
    data: Path | None = setting(None, help="Directory of the datasets. Missing ones are named and left out.")
    targets: tuple[str, ...] = setting((), help="Domains to hold out. Default: each domain in turn.")
    trials: tuple[int, ...] = setting((0, 1, 2), help="Train-validation splits. Default: 0,1,2; small 0,1; smoke 0.")
    protocol: Protocol = setting(
        "printed",
        help="printed: each row with the search behind the printed number. paper or domainbed: all searched rows "
        "with that search. defaults: no search. Default: printed; small and smoke defaults.",
    )
    network: str | None = setting(None, help="Name of a timm model, or small. Default: depends on the dataset.")
    weights: str | None = setting(None, help="pretrained, random, or a safetensors file.")
    steps: int | None = setting(
        None, help="Number of updates of each run. Default: depends on the dataset and the scale."
    )
    evaluate_every: int | None = setting(
        None, help="Updates between evaluations. Default: depends on the dataset and the scale."
    )
    radii: tuple[float, ...] | None = setting(None, help="figure3, ranking: radii, as for `swad measure flatness`.")
    directions: int = setting(
        100, help="figure3, ranking: number of random directions. Default: 100; small 20; smoke 4."
    )
    images: int | None = setting(
        200, minimum=0, help="Images per domain to measure on; 0 uses all. Default: 200; small 100; smoke 10."
    )
    grid: int = setting(21, minimum=2, maximum=1000, help="Grid points per side of surfaces. Default: 21; smoke 3.")
    runs: Path | None = setting(
        None,
        help="table6: directory of runs of `swad train imagenet`. They are evaluated on imagenet, imagenet-c, "
        "imagenet-r and bg_challenge in --data.",
    )
    formats: tuple[str, ...] = setting(("svg", "pdf", "png"), help="Formats of the figures: svg, pdf, png.")
    device: str = setting("cpu", help="auto, cpu, cuda or cuda:1.")
    workers: int | None = setting(None, help="Number of processes that read images.")
    check_counts: bool = setting(True, help="Require the published number of images in every domain.")

    def measured_datasets(self, of_item: Sequence[str]) -> tuple[str, ...]:
        """Datasets to train an item on: stand-ins first, then the available ones of the paper, in its order."""
        others = [name for name in self.datasets if name not in PAPER_DATASETS]
        return (*others, *(name for name in of_item if name in self.datasets))

    def targets_of(self, dataset: str) -> tuple[str, ...]:
        """The domains of a dataset to hold out."""
        from swad.testbed.data import benchmarks

        domains = benchmarks.get(dataset).domains or benchmarks.load(dataset, self.data).domain_names
        return tuple(name for name in domains if not self.targets or name in self.targets)

    @property
    def run_options(self) -> dict[str, Any]:
        """Settings of all runs that differ from their defaults: the name of a run depends on what was requested."""
        return {name: value for name in RUN_SETTINGS if (value := getattr(self, name)) != SETTINGS[name].default}

    def steps_of(self, dataset: str) -> int:
        """Optimizer steps of a run on a dataset."""
        return self.steps or _benchmark(dataset).defaults.steps

    def evaluate_every_of(self, dataset: str) -> int:
        """Steps between evaluations on a dataset."""
        return self.evaluate_every or _benchmark(dataset).defaults.evaluate_every_in(self.steps_of(dataset))


PAPER_SETTINGS = settings_of(PaperConfig)
"""The fields of `PaperConfig` by name."""

add_args(PaperConfig, [known.doc for known in PAPER_SETTINGS.values()])


def _benchmark(dataset: str) -> Benchmark:
    from swad.testbed.data import benchmarks

    return benchmarks.get(dataset)


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
    from swad.util.images import DataError

    try:
        return _benchmark(dataset).name
    except DataError:
        return dataset


def find_datasets(root: Path | None) -> tuple[str, ...]:
    """Return the paper's datasets that are in a directory, or that the directory is."""
    from swad.util.images import DataError

    if root is None:
        return ()
    if not root.is_dir():
        raise DataError(f"data (--data) must be a directory, got {root}: check the path")
    return tuple(name for name in PAPER_DATASETS if _is_there(_benchmark(name), root))


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
    from swad.flatness import check_radii

    # The settings of the runs are checked below, as those of any sweep.
    problems = []
    for name in ("scale", "protocol", "images", "grid"):
        known, value = PAPER_SETTINGS[name], getattr(config, name)
        if wrong := known.problem(value):
            option = "--" + name.replace("_", "-")
            problems.append(choice_problem(option, value, known.choices) if known.choices else f"--{wrong}")
    if config.datasets:
        problems += _run_problems(config)
    elif config.runs is None:
        found = "data is not set" if config.data is None else f"{config.data} has none"
        problems.append(
            f"a dataset of the paper is needed ({', '.join(PAPER_DATASETS)}), but {found}: give the directory that "
            "contains them as data (--data), or use the scale small (--scale)"
        )
    if config.radii is not None:
        try:
            check_radii(config.radii)
        except ValueError as error:
            problems.append(str(error))
    return problems


def _run_problems(config: PaperConfig) -> list[str]:
    """Return what is wrong with the settings of all runs, which are those of a sweep, and with the data."""
    from swad.testbed.sweep import checks
    from swad.util.images import DataError

    spec = SweepSpec(
        datasets=config.datasets,
        targets=config.targets,
        trials=config.trials,
        data=config.data,
        options=config.run_options,
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
