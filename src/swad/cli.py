"""The command line. Every handler imports what it needs when it runs, so that `swad --help` answers at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

try:
    import typer
except ImportError:  # the library is used without the commands
    sys.exit('the swad command needs its extra packages: pip install "swad[vision,report]"')

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType


app = typer.Typer(
    help="Domain generalisation by seeking flat minima: train with a domain held out, average, report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
datasets_app = typer.Typer(help="The data sets: list them, check a copy, download one.", no_args_is_help=False)
app.add_typer(datasets_app, name="datasets")
algorithms_app = typer.Typer(help="The algorithms: list them, show what one computes and takes.", no_args_is_help=False)
app.add_typer(algorithms_app, name="algorithms")

# Headings of `swad train --help`.
DATA, TRAINING, MEASURING, FILES, MACHINE = "Data", "Training", "Averages and evaluation", "Files", "Machine"

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
FigureFolder = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for figures. Default: RUN/figures.")]
FigureFormats = Annotated[str, typer.Option("--figure-formats", help="svg, pdf, png: one or several.")]
DataNow = Annotated[Path | None, typer.Option("--data", "-d", help="Where the data lies now, if not where it was.")]
Select = Annotated[str, typer.Option("--select", help="iid, last, oracle, oracle_best_step or lodo.")]


@app.command()
def demo(
    output: Output = Path("demo"),
    trials: Annotated[int, typer.Option(help="Train-validation splits, for the standard error.")] = 2,
    steps: Annotated[int | None, typer.Option(help="Updates of each run.")] = None,
    device: Device = "cpu",
) -> None:
    """Handwritten digits in four styles, each held out once: ERM, EMA, SWA and SWAD from one training each."""
    from swad.demo import configs, look
    from swad.display import show_report
    from swad.jobs import train_all

    planned = configs(output, trials, steps, _device(device))
    train_all(planned, jobs=_cores())
    look(planned[0])
    show_report(output, output / "report.html")


@app.command()
def train(
    dataset: Annotated[str, typer.Argument(help="A data set's name; `swad datasets` lists them.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            help="Domain to hold out; again for more runs; A+B holds two out. Default: all.",
            rich_help_panel=DATA,
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Folder the data set lies in.", rich_help_panel=DATA)
    ] = None,
    output: Output = Path("runs"),
    average: Annotated[
        list[str] | None,
        typer.Option(
            "--average",
            "-a",
            help="Averages that ride along, e.g. swad,swa,ema or swad:semantics=text.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    trial: Annotated[
        str, typer.Option(help="Train-validation split: 0; or 0,1,2 for three runs of each.", rich_help_panel=DATA)
    ] = "0",
    algorithm: Annotated[
        str,
        typer.Option(
            help="What is trained; `swad algorithms` lists them. NAME+sam puts SAM over one.", rich_help_panel=TRAINING
        ),
    ] = "erm",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", help="A hyperparameter, e.g. lr=3e-5, batch_size=32, dropout=0.1.", rich_help_panel=TRAINING
        ),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="A timm name, or small. Default: by the data set.", rich_help_panel=TRAINING)
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="pretrained, random, or a safetensors file.", rich_help_panel=TRAINING)
    ] = None,
    freeze_bn: Annotated[
        bool, typer.Option(help="Keep batch-norm statistics as they came.", rich_help_panel=TRAINING)
    ] = True,
    steps: Annotated[
        int | None, typer.Option(help="Updates. Default: by the data set.", rich_help_panel=TRAINING)
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Updates between evaluations.", rich_help_panel=MEASURING)
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="ours, or published: one update late, as the published code.", rich_help_panel=MEASURING)
    ] = "ours",
    lr_schedule: Annotated[
        str, typer.Option(help="constant, or cyclic for SWA.", rich_help_panel=TRAINING)
    ] = "constant",
    split: Annotated[str, typer.Option(help="80/20 or 60/20/20.", rich_help_panel=DATA)] = "80/20",
    seed: Annotated[
        int | None, typer.Option(help="Default: by data set, algorithm, target and trial.", rich_help_panel=DATA)
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="exact: as published; fast: decoded once and augmented on the device. Default: fast on a GPU.",
            rich_help_panel=DATA,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder of decoded images. Default: $SWAD_CACHE or ~/.cache.", rich_help_panel=DATA),
    ] = None,
    cache_size: Annotated[
        int | None, typer.Option(help="Rows and columns decoded images are kept at.", rich_help_panel=DATA)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32 or bf16. Default: bf16 on a GPU.", rich_help_panel=TRAINING)
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="auto, eager, graph or compile: how a step is computed.", rich_help_panel=MACHINE),
    ] = "auto",
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that read images.", rich_help_panel=MACHINE)] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of a run; the last bits depend on it.", rich_help_panel=MACHINE)
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Runs side by side. Default: on a GPU as many as are found to pay, else 1.", rich_help_panel=MACHINE
        ),
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm.", rich_help_panel=TRAINING)] = None,
    erm: Annotated[
        bool, typer.Option(help="Also report the live weights, best and last.", rich_help_panel=MEASURING)
    ] = True,
    early_stop: Annotated[
        bool, typer.Option(help="Stop when nothing that was asked for needs the rest.", rich_help_panel=MEASURING)
    ] = True,
    target_every_evaluation: Annotated[
        bool, typer.Option(help="Measure the target at every evaluation.", rich_help_panel=MEASURING)
    ] = False,
    validation_subsample: Annotated[
        int | None,
        typer.Option(help="Validate on so many images of each domain while training.", rich_help_panel=MEASURING),
    ] = None,
    subsample_check: Annotated[
        bool,
        typer.Option(
            help="With a subsample, also follow the valley by all images, to show what it changes.",
            rich_help_panel=MEASURING,
        ),
    ] = True,
    augment_validation: Annotated[
        bool, typer.Option(help="Augment source validation, as DomainBed does.", rich_help_panel=MEASURING)
    ] = False,
    snapshots: Annotated[
        str, typer.Option(help="Updates whose weights are saved, e.g. 2500,3500,4500.", rich_help_panel=FILES)
    ] = "",
    keep_segments: Annotated[
        bool, typer.Option(help="Keep the mean weights of every segment.", rich_help_panel=FILES)
    ] = False,
    any_counts: Annotated[
        bool,
        typer.Option("--any-counts", help="Accept other than the published numbers of images.", rich_help_panel=DATA),
    ] = False,
    deterministic: Annotated[
        bool, typer.Option(help="Bit-equal results on a GPU too.", rich_help_panel=TRAINING)
    ] = False,
    tensorboard: Annotated[bool, typer.Option(help="Write TensorBoard events too.", rich_help_panel=FILES)] = False,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Updates between checkpoints.", rich_help_panel=FILES)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            help="Go on with unfinished runs of the same settings; --no-resume refuses them.", rich_help_panel=FILES
        ),
    ] = True,
) -> None:
    """Hold one domain out, train on the others, average the weights, and measure on the one held out.

    Run it again after a stop and it goes on where it was: finished runs are kept, unfinished ones resume.
    """
    from swad import algorithms, datasets, named_averages
    from swad.config import RunConfig
    from swad.display import show_report
    from swad.jobs import train_all

    benchmark = datasets.get(dataset)
    method = algorithms.canonical(algorithm)
    targets = target or list(_domains(benchmark.name, data))
    name = benchmark.name if benchmark.domains or data is None else data.resolve().name
    chosen = tuple(one for text in average or ["swad"] for one in named_averages.split(text))
    where = _device(device)
    configs = [
        RunConfig(
            dataset=dataset,
            target=_targets(one, benchmark.name, data),
            output=output / name / method / f"{one}-{number}",
            data=data,
            strict=not any_counts,
            trial=number,
            seed=seed,
            split=split,  # type: ignore[arg-type]
            algorithm=algorithm,
            hyperparameters=_settings(settings or []),
            clip=clip,
            network=network,
            weights=weights,
            freeze_bn=freeze_bn,
            steps=steps,
            evaluate_every=evaluate_every,
            schedule=schedule,  # type: ignore[arg-type]
            lr_schedule=lr_schedule,  # type: ignore[arg-type]
            averages=chosen,
            erm=erm,
            early_stop=early_stop,
            images=images,  # type: ignore[arg-type]
            cache=cache,
            cache_size=cache_size,
            precision=precision,  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            device=where,
            deterministic=deterministic,
            workers=workers,
            threads=threads,
            validation_subsample=validation_subsample,
            subsample_check=subsample_check,
            augment_validation=augment_validation,
            target_every_evaluation=target_every_evaluation,
            snapshots=tuple(_whole_numbers(snapshots)),
            keep_segments=keep_segments,
            checkpoint_every=checkpoint_every,
            tensorboard=tensorboard,
        )
        for number in _whole_numbers(trial)
        for one in targets
    ]
    if not resume:
        from swad.run_folder import begun

        if held := [str(config.output) for config in configs if begun(config.output)]:
            raise ValueError(f"--no-resume wants new folders, and {held[0]} holds a run: choose another --output")
    train_all(configs, jobs)
    if _is_first_process():
        show_report(output, output / "report.html")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder with runs, searched to the bottom.")] = Path("runs"),
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: FOLDER/report.html.")] = None,
    select: Select = "iid",
    form: Annotated[str, typer.Option("--format", "-f", help="text, markdown, latex or csv.")] = "text",
    split: Annotated[str, typer.Option(help="Part of the target that is reported: in, out, full or test.")] = "in",
    figures: Annotated[Path | None, typer.Option(help="Also draw the validation curves into this folder.")] = None,
    figure_formats: Annotated[str, typer.Option(help="svg, pdf, png: one or several.")] = "svg,pdf",
    paper: Annotated[
        str, typer.Option(help="The paper's rows below ours: few (ERM, SWAD, methods of the same name), all or none.")
    ] = "few",
) -> None:
    """The table of all runs in a folder, beside the paper's, and a page that opens without a network."""
    from swad.display import show_report

    show_report(folder, output or folder / "report.html", select, form, split, figures, figure_formats, paper)


@app.command()
def flatness(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders of runs.")],
    weights: Annotated[
        str, typer.Option(help="Which weights, e.g. erm_best,swa,swad or the step 2500; the first is compared with.")
    ] = "",
    radii: Annotated[
        str, typer.Option(help="Distances, as 0,5,10 or 0:60:5. Default: 0:60:5 as published; small network 0:24:2.")
    ] = "",
    directions: Annotated[int, typer.Option(help="Random directions, in opposite pairs.")] = 100,
    images: Annotated[int, typer.Option(help="Images of each domain, classes in proportion; 0: all.")] = 200,
    normalise: Annotated[str, typer.Option(help="Directions: sphere (as published), filter or layer.")] = "sphere",
    seed: Annotated[int, typer.Option(help="Of the directions.")] = 0,
    worst_case: Annotated[
        str, typer.Option(help="Also the worst loss within these radii, by ascent, e.g. 0.05,0.1.")
    ] = "",
    curvature: Annotated[bool, typer.Option("--curvature", help="Also eigenvalues and trace of the Hessian.")] = False,
    output: FigureFolder = None,
    figure_formats: FigureFormats = "svg,pdf,png",
    data: DataNow = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that read images.")] = None,
) -> None:
    """How the loss rises around saved weights, on domains seen and unseen (the paper's Figure 3).

    Rows are kept in each run's flatness.jsonl as they are computed: run it again after a stop and it goes on.
    """
    from swad.flatness.commands import show_flatness
    from swad.flatness.lab import Measuring

    if normalise not in ("sphere", "filter", "layer"):
        raise ValueError(f"--normalise is one of sphere, filter, layer; got {normalise!r}")
    show_flatness(
        runs,
        weights=_words(weights),
        measuring=Measuring(
            tuple(_radii(radii)) or None,
            _pairs(directions),
            _count("images", images, 0) or None,
            normalise,  # type: ignore[arg-type]
            seed,
        ),
        worst_radii=_radii(worst_case),
        curvature=curvature,
        output=output,
        formats=_formats(figure_formats),
        device=_device(device),
        workers=workers,
        data=data,
    )


@app.command()
def surface(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders of runs.")],
    corners: Annotated[
        str, typer.Option(help="Three weights, e.g. 2500,3500,4500 or erm_best,swa,swad. Default: three snapshots.")
    ] = "",
    line: Annotated[
        tuple[str, str] | None, typer.Option(help="Instead: the straight line between two weights.")
    ] = None,
    points: Annotated[
        str | None, typer.Option(help="Further weights to project onto the plane. Default: averages near it.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Points along each side.")] = 21,
    margin: Annotated[float, typer.Option(help="Room around the corners, as a share of the longer side.")] = 0.4,
    images: Annotated[int, typer.Option(help="Images of each domain, classes in proportion; 0: all.")] = 200,
    output: FigureFolder = None,
    figure_formats: FigureFormats = "svg,pdf,png",
    data: DataNow = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that read images.")] = None,
) -> None:
    """The loss on the plane through three saved weights, on domains seen and unseen (the paper's Figure 4).

    Rows are kept in each run's surface.jsonl as they are computed: run it again after a stop and it goes on.
    """
    from swad.flatness.commands import show_surface

    if line is not None and corners:
        raise ValueError("--corners is for a plane and --line for a line: give one of them")
    chosen = list(line) if line is not None else _words(corners)
    if line is None and chosen and len(chosen) != 3:
        raise ValueError(f"--corners takes three weights, got {corners!r}: e.g. 2500,3500,4500; for two use --line A B")
    show_surface(
        runs,
        corners=chosen,
        points=None if points is None else _words(points),
        steps=_count("steps", steps, 2),
        margin=margin,
        images=_count("images", images, 0) or None,
        output=output,
        formats=_formats(figure_formats),
        device=_device(device),
        workers=workers,
        data=data,
    )


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="figure3, figure4 or figure5.")],
    dataset: Annotated[str, typer.Option(help="digits (embedded), PACS, or another data set.")] = "digits",
    data: Annotated[Path | None, typer.Option("--data", "-d", help="Folder the data set lies in.")] = None,
    target: Annotated[list[str] | None, typer.Option("--target", "-t", help="Default: every domain in turn.")] = None,
    methods: Annotated[str, typer.Option(help="Of figure3: some of erm,sam,swa-cyclic,swa,swad.")] = "",
    erm: Annotated[str, typer.Option(help="Live weights that stand for ERM and SAM: best or last.")] = "best",
    trials: Annotated[int, typer.Option(help="Train-validation splits.")] = 1,
    network: Annotated[str | None, typer.Option(help="A timm name, or small. Default: by the data set.")] = None,
    weights: Annotated[str | None, typer.Option(help="pretrained, random, or a safetensors file.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of each run. Default: by the data set.")] = None,
    radii: Annotated[str, typer.Option(help="Of figure3, as for `swad flatness`.")] = "",
    directions: Annotated[int, typer.Option(help="Of figure3: random directions.")] = 100,
    images: Annotated[int, typer.Option(help="Images of each domain that are measured; 0: all.")] = 200,
    grid: Annotated[int, typer.Option(help="Of figure4: points along each side.")] = 21,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for runs and figures.")] = Path("paper"),
    figure_formats: FigureFormats = "svg,pdf,png",
    device: Device = "auto",
    jobs: Annotated[int, typer.Option(help="Runs side by side.")] = 1,
    workers: Annotated[int | None, typer.Option(help="Processes that read images.")] = None,
    any_counts: Annotated[
        bool, typer.Option("--any-counts", help="Accept other than the published numbers of images.")
    ] = False,
) -> None:
    """A figure of the paper from the start: trains what is missing, measures, draws.

    Runs are shared between figures, finished ones are kept, and stopped work goes on.
    """
    from swad import paper

    paper.reproduce(
        what,
        paper.Setting(
            dataset=dataset,
            output=output,
            data=data,
            targets=tuple(target or ()),
            trials=_count("trials", trials, 1),
            network=network,
            weights=weights,
            steps=steps,
            device=_device(device),
            workers=workers,
            strict=not any_counts,
            methods=tuple(_words(methods)),
            erm=erm,
            radii=tuple(_radii(radii)) or None,
            directions=_pairs(directions),
            images=_count("images", images, 0) or None,
            grid=_count("grid", grid, 2),
            formats=_formats(figure_formats),
        ),
        jobs,
    )


@algorithms_app.callback(invoke_without_command=True)
def list_algorithms(context: typer.Context) -> None:
    """List the algorithms."""
    if context.invoked_subcommand is None:
        from swad.display import show_algorithms

        show_algorithms()


@algorithms_app.command("show")
def show_algorithm(name: Annotated[str, typer.Argument(help="An algorithm's name, or NAME+sam.")]) -> None:
    """What one algorithm computes, whom to credit, and every hyperparameter with its default and range."""
    from swad.display import show_algorithm

    show_algorithm(name)


@datasets_app.callback(invoke_without_command=True)
def list_datasets(context: typer.Context) -> None:
    """List the data sets."""
    if context.invoked_subcommand is None:
        from swad.display import show_datasets

        show_datasets()


@datasets_app.command("show")
def show_dataset(name: Annotated[str, typer.Argument(help="A data set's name.")]) -> None:
    """Everything known about one data set: counts, licence, citation, where it comes from."""
    from swad.display import show_dataset

    show_dataset(name)


@datasets_app.command("check")
def check_dataset(
    path: Annotated[Path, typer.Argument(help="The data set's folder.")],
    name: Annotated[str | None, typer.Option(help="Its name, where the folders do not tell.")] = None,
    decode: Annotated[bool, typer.Option(help="Decode every image.")] = True,
) -> None:
    """Count the images of a copy, decode every one, and name what is wrong."""
    from swad import datasets

    with datasets.progress_bar() as progress:
        result = datasets.check(path, name, decode=decode, progress=progress)
    datasets.show_check(result)
    if not result.ok:
        raise typer.Exit(1)


@datasets_app.command("fetch")
def fetch_dataset(
    name: Annotated[str, typer.Argument(help="A data set's name.")],
    output: Output = Path("data"),
) -> None:
    """Download a data set: goes on after a break, checks sums, unpacks safely."""
    from swad import datasets

    with datasets.progress_bar() as progress:
        result = datasets.fetch(name, output, progress=progress)
    datasets.show_fetched(result)


@app.command()
def doctor() -> None:
    """What this machine has and can do."""
    from swad.doctor import examine

    examine()


def main() -> None:
    """Run a command. What is the user's to mend ends in one line and the code 1; Ctrl-C in 130."""
    stop = _listen()
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        _say("stopped")
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ == "Interrupted" or stop.is_set():
            _say(str(error) if type(error).__name__ == "Interrupted" else "stopped")
            sys.exit(130)
        if not isinstance(error, ValueError | OSError) and type(error).__name__ not in _EXPECTED:
            raise
        if os.environ.get("SWAD_TRACEBACK"):
            raise
        _say(f"error: {error}")
        sys.exit(1)


_EXPECTED = {"RunError", "RecordError", "NetworkError", "SelectionError", "AlgorithmError"}
"""Errors that speak to the user, by name: importing them all would make `swad --help` slow."""


def _listen() -> threading.Event:
    """Note Ctrl-C as well as raise it: packages that are interrupted while they load raise something else."""
    stop = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    return stop


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _domains(dataset: str, data: Path | None) -> Sequence[str]:
    from swad import datasets

    benchmark = datasets.get(dataset)
    return benchmark.domains or datasets.load(dataset, data).domain_names


def _targets(text: str, dataset: str, data: Path | None) -> tuple[str, ...]:
    """One domain, or with A+B two; a `+` may also be part of a domain's name."""
    return (text,) if "+" not in text or text in _domains(dataset, data) else tuple(text.split("+"))


def _settings(texts: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"--set takes name=number, got {text!r}: e.g. --set lr=3e-5")
        found[name] = int(number) if number.is_integer() and "." not in value and "e" not in value else number
    return found


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"whole numbers with commas are needed, e.g. 0,1,2; got {text!r}") from None


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(directions: int) -> int:
    """Directions, which come in opposite pairs."""
    if directions < 2 or directions % 2:
        raise ValueError(f"--directions must be an even number of 2 or more, as they come in pairs; got {directions}")
    return directions


def _radii(text: str) -> list[float]:
    """Numbers with commas, or START:STOP:STEP with both ends."""
    try:
        if ":" in text:
            start, stop, step = (float(part) for part in text.split(":"))
            if not step > 0 or stop < start:
                raise ValueError
            return [start + step * k for k in range(int((stop - start) / step + 1e-9) + 1)]
        return [float(part) for part in _words(text)]
    except ValueError:
        raise ValueError(f"radii are numbers with commas or START:STOP:STEP, e.g. 0:60:5; got {text!r}") from None


def _count(option: str, value: int, least: int) -> int:
    if value < least:
        raise ValueError(f"--{option} must be {least} or more, got {value}")
    return value


def _formats(text: str) -> list[str]:
    found = _words(text)
    if not found or any(one not in ("svg", "pdf", "png") for one in found):
        raise ValueError(f"--figure-formats is one or several of svg, pdf, png; got {text!r}")
    return found


def _device(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
