"""Classifiers of ImageNet by name: weights of runs, weights files that a run wrote, and timm networks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from swad.robustness import backgrounds
from swad.robustness.imagenet import N_CLASSES, imagenet_classes
from swad.testbed.measure.engine import choose_weights
from swad.testbed.measure.saved_run import fingerprint, open_runs
from swad.testbed.models import networks, weight_files
from swad.testbed.models.catalog import input_config, require_known
from swad.testbed.results.labels import directory_names, weights_label
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import load_run
from swad.testbed.training import export
from swad.testbed.training.run_dir import RunError
from swad.util.images import InputConfig


@dataclass(frozen=True)
class ImageNetModel:
    """A classifier that can be loaded when it is needed."""

    label: str
    """Name in tables and figures."""
    weights: str
    """Name in the rows of its directory."""
    directory: Path
    """Where its rows are stored: the run directory, or the output of the command."""
    fingerprint: str
    input: InputConfig
    n_outputs: int
    load: Callable[[], nn.Module] = field(repr=False)
    classes: tuple[int, ...] | None = None
    """Class of ImageNet of every output; None for all 1,000 in their order, and for the nine of the challenge."""
    file: Path | None = None
    """The weights file of a model that belongs to no run."""


def find_models(
    arguments: Sequence[str], weights: Sequence[str], output: Path, data: Path | None = None
) -> tuple[list[ImageNetModel], list[str]]:
    """Return the models that the arguments name, and notes on what was skipped.

    Args:
        arguments: Run directories or directories of runs, weights files that a run wrote, timm models with the hub's
            weights (`resnet50.a1_in1k`), or timm models with a local safetensors file (`resnet50=FILE`).
        weights: Names of the weights of runs. Empty: all that a run reports.
        output: Directory for the rows of models that belong to no run.
        data: Where the dataset of the runs is now.
    """
    models: list[ImageNetModel] = []
    notes: list[str] = []
    for argument in arguments:
        path, (name, _, file) = Path(argument), argument.partition("=")
        if path.is_dir():
            found, skipped = _of_runs(path, weights, data)
            models += found
            notes += skipped
        elif path.suffix == ".safetensors" and (path.is_file() or not file):
            try:
                models.append(replace(saved_model(path, path.stem, path.stem, output), file=path))
            except networks.NetworkError as error:
                raise RunError(f"{error}, or name the timm model of the file (resnet50={path})") from None
        else:
            models.append(_of_timm(name, file, output))
    return _with_unique_labels(models), notes


def _of_runs(path: Path, weights: Sequence[str], data: Path | None) -> tuple[list[ImageNetModel], list[str]]:
    runs, notes = open_runs([path], data)
    chosen, skipped = choose_weights(runs, weights)
    # In the order of the request; without one, ERM comes first, as in the paper's tables.
    named = [(run, name) for run, names in chosen for name in names]
    if weights:
        named.sort(key=lambda pair: weights.index(pair[1]))
    models = [
        saved_model(
            run.file(name), weights_label(load_run(run.path), run.full_name(name)), run.full_name(name), run.path
        )
        for run, name in named
    ]
    if not weights:
        models.sort(key=lambda model: not model.label.startswith("ERM"))
    return models, notes + skipped


def saved_model(path: Path, label: str, weights: str, directory: Path) -> ImageNetModel:
    """Return the model of a weights file that a run wrote."""
    card = export.read_card(path)
    names, spec = [str(name) for name in card["classes"]], card["input"]
    if spec["channels"] != 3:
        raise RunError(f"{path} takes images of {spec['channels']} channel: the benchmarks need a model of RGB images")
    size = int(spec["size"])
    # The crop of `eval_transform`: 224 of 256 pixels.
    input = InputConfig(size, tuple(spec["mean"]), tuple(spec["std"]), crop=size / round(size * 8 / 7))
    known = imagenet_classes()
    if names == [str(label) for label in range(N_CLASSES)]:  # shards that number ImageNet's classes, in their order
        names = list(known)
    if not set(names) <= known.keys() and names != list(backgrounds.FOLDERS):
        raise RunError(
            f"the classes of {path} are {', '.join(names[:3])}, ...: the benchmarks need a classifier of classes of "
            f"ImageNet, with names such as {min(known)}; `swad measure corruption RUN` corrupts its own images"
        )
    if export.eval_group_size(card) is not None:
        raise RunError(
            f"predictions of {path} depend on the batch, which the benchmarks do not allow: use another method"
        )
    classes = None if names in (list(known), list(backgrounds.FOLDERS)) else tuple(known[name] for name in names)

    def load() -> nn.Module:
        return export.load_predictor(path).model

    return ImageNetModel(label, weights, directory, fingerprint(path), input, len(names), load, classes)


def _of_timm(name: str, file: str, output: Path) -> ImageNetModel:
    if os.sep in name:
        raise RunError(f"there is no directory {name}: give a run directory, a weights file or a timm model")
    try:
        require_known(name)
    except networks.NetworkError as error:
        raise RunError(f"there is no directory {name}, and {error}") from None
    model = networks.build_classifier(name, Path(file) if file else None)
    n_outputs = int(cast(Any, model).num_classes)
    input = input_config(name)
    if n_outputs == len(backgrounds.FOLDERS):
        input = input._replace(mean=backgrounds.MEAN, std=backgrounds.STD)
    elif n_outputs != N_CLASSES:
        raise RunError(f"{file or name} has {n_outputs:,} classes: the benchmarks need the {N_CLASSES:,} of ImageNet")
    mark = fingerprint(Path(file)) if file else weight_files.checksum(model.state_dict(), name)[:16]
    label = f"{name} ({Path(file).stem})" if file else name
    return ImageNetModel(label, label, output, mark, input, n_outputs, lambda: model, file=Path(file) if file else None)


def _with_unique_labels(models: Sequence[ImageNetModel]) -> list[ImageNetModel]:
    """Add the name of the run or weights file to labels that several models share."""
    labels = [model.label for model in models]
    names = directory_names([RunData(model.file or model.directory, {}, (), True) for model in models])
    named = [
        replace(model, label=f"{model.label} ({name})") if labels.count(model.label) > 1 else model
        for model, name in zip(models, names, strict=True)
    ]
    for model in named:
        if sum(model.label == other.label for other in named) > 1:
            raise RunError(f"the model {model.label} was given twice: give each model once")
    return named
