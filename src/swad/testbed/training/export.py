"""Save models as safetensors with a model card: where the weights come from, their scores, and how to load them.

The card is stored twice: as JSON in the metadata of the weights file, and as Markdown next to it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from swad.testbed.algorithms.base import Algorithm
from swad.testbed.algorithms.hyperparameters import Hyperparameters, fill
from swad.testbed.algorithms.registry import OWN_ALGORITHM, AlgorithmError, get_algorithm
from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.splits import Sources
from swad.testbed.data.transforms import PredictorTransform
from swad.testbed.models import catalog, networks, weight_files
from swad.testbed.training.config import ResolvedConfig
from swad.util.files import atomic_write, write_text
from swad.util.names import counted, one_line
from swad.util.version import __version__


def save_weights(path: Path, weights: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write a weights file and its card, each atomically; the same weights and card give the same bytes."""
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
    stored: set[int] = set()
    for name, tensor in tensors.items():
        if (address := tensor.untyped_storage().data_ptr()) in stored:  # safetensors refuses tied weights
            tensors[name] = tensor.clone()
        stored.add(address)
    text = json.dumps(card, default=str)
    metadata = {"format": "pt", weight_files.CARD: text, weight_files.CHECKSUM: weight_files.checksum(tensors, text)}
    with atomic_write(path) as partial:
        save_file(tensors, partial, metadata=metadata)
        _sort_metadata(partial)
    write_text(path.with_suffix(".md"), markdown(path.name, card))


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file in place: the library writes it in random order."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        content = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(content) <= size, "the sorted header must fit into its place"
        file.seek(8)
        file.write(content.ljust(size))


def read_card(path: Path | str) -> dict[str, Any]:
    """Read the card inside a weights file."""
    with weight_files.open_safetensors(path) as file:
        metadata = file.metadata() or {}
        if weight_files.CARD not in metadata:
            raise networks.NetworkError(f"{path} has no model card: use a weights file that a run wrote")
        card = json.loads(metadata[weight_files.CARD])
        if not isinstance(card, dict):
            raise TypeError(f"the model card is {type(card).__name__}, not an object")
        return card


class Predictor(NamedTuple):
    """A saved model with everything that its use needs."""

    model: nn.Module
    """The predictor, in evaluation mode."""
    transform: PredictorTransform
    """From a PIL image, an array or a path to the tensor that the model was evaluated on."""
    class_names: tuple[str, ...]
    """The class of each output."""


def load_predictor(path: Path | str) -> Predictor:
    """Load a model that a run saved.

        model, transform, class_names = swad.testbed.load_predictor("runs/photo-0/weights/swad.safetensors")
        logits = model(transform("dog.jpg").unsqueeze(0))
        class_names[logits.argmax()]

    Args:
        path: A weights file in the `weights` directory of a run.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("weights/*.safetensors")) or sorted(path.glob("*.safetensors"))
        names = f", one of {', '.join(map(str, files))}" if files else " in the weights directory of a run"
        raise networks.NetworkError(f"{path} is a directory: name a file{names}")
    weights, card = weight_files.read_safetensors(path), read_card(path)
    try:
        return _predictor(weights, card)
    except networks.NetworkError as error:
        raise networks.NetworkError(f"cannot load {path}: {error}") from None
    except AlgorithmError as error:  # a saved name is not a typo, so the closest name alone would mislead
        hint = f"; {OWN_ALGORITHM}"
        raise networks.NetworkError(f"cannot load {path}: {str(error).removesuffix(hint)}{hint}") from None
    except Exception as error:  # a card may hold anything
        raise networks.NetworkError(
            f"cannot load {path}: its model card or its weights are not those of a run ({type(error).__name__}: "
            f"{one_line(error, 200)}); use a weights file that this version of swad wrote"
        ) from None


def _predictor(weights: dict[str, Tensor], card: Mapping[str, Any]) -> Predictor:
    if ":" in card["network"]:
        raise networks.NetworkError(f"its network {card['network']!r} would be downloaded: use a network of timm")
    spec = card["input"]
    network = networks.build(
        card["network"],
        len(card["classes"]),
        channels=spec["channels"],
        freeze_bn=card["freeze_bn"],
        image_size=spec["size"],
    )
    algorithm, hyperparameters = _algorithm(card)
    model = algorithm.wrap_predictor(network, hyperparameters, len(card["sources"]))
    model.load_state_dict(weights)
    image_spec = ImageSpec(**{name: _tuple(value) for name, value in spec.items()})
    return Predictor(model.eval(), PredictorTransform(image_spec), tuple(card["classes"]))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def cpu_weights(module: nn.Module) -> dict[str, Tensor]:
    """Copy a module's weights to host memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}


def model_card(
    config: ResolvedConfig,
    sources: Sources,
    steps: int,
    description: str,
    averaged: Mapping[str, Any] | None = None,
    scores: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the model card of weights that a run trained, as plain values.

    Args:
        config: Settings of the run.
        sources: The source domains.
        steps: Steps made when the weights are saved.
        description: What the weights are, as a sentence without its period.
        averaged: The steps that an average took, from `averaged_range`.
        scores: Loss and accuracy by domain and split.
    """
    return {
        "description": description,
        "version": __version__,
        "network": config.network,
        "freeze_bn": config.freeze_bn,
        "classes": list(sources.classes),
        "input": dataclasses.asdict(sources.image_spec),
        "dataset": config.dataset,
        "algorithm": config.algorithm,
        "sources": list(sources.names),
        "targets": list(config.targets),
        "trial": config.trial,
        "steps": steps,
        "range": averaged,
        "scores": scores,
        "config": config.to_dict(),
    }


def markdown(file_name: str, card: Mapping[str, Any]) -> str:
    """Return the model card as Markdown."""
    size, mean, std = card["input"]["size"], card["input"]["mean"], card["input"]["std"]
    lines = [
        *summary(file_name, card),
        "## Loading",
        "",
        "```python",
        *_loading_code(file_name, card),
        "```",
        "",
        f"Input: {card['input']['channels']} × {size} × {size}, scaled to 0–1, mean {_joined(mean)}, "
        f"standard deviation {_joined(std)}. {input_line(card)}",
        "",
        *_batch_dependence(card),
        "## Settings",
        "",
        "```json",
        json.dumps(card["config"], indent=2, default=str),
        "```",
        "",
        f"Written by swad {card['version']} with torch {torch.__version__}.",
        "",
    ]
    return "\n".join(lines)


def summary(file_name: str, card: Mapping[str, Any]) -> list[str]:
    """Return the first lines of a model card: where the weights come from, and their scores."""
    held_out = f"held out: {', '.join(card['targets'])}" if card["targets"] else "no target"
    lines = [
        f"# {file_name}",
        "",
        f"{card['description']}.",
        "",
        f"{card['network']}, trained with {card['algorithm']} on {card['dataset']} "
        f"({', '.join(card['sources'])}; {held_out}), trial {card['trial']}, "
        f"{card['steps']:,} steps.",
        "",
    ]
    if card.get("range"):
        averaged = card["range"]
        updates = counted(averaged["n_averaged"], "update")
        lines += [f"Averaged steps: {averaged['spans']} ({updates}; {averaged['reason']}).", ""]
    if card.get("scores"):
        lines += ["| domain | split | accuracy, % | loss |", "|:--|:--|--:|--:|"]
        lines += [
            f"| {domain} | {split} | {100 * score['accuracy']:.2f} | {score['loss']:.4f} |"
            for domain, splits in card["scores"].items()
            for split, score in splits.items()
        ]
        lines.append("")
    return lines


def input_line(card: Mapping[str, Any]) -> str:
    """Say how images are resized, and name the classes."""
    spec = card["input"]
    size, first = spec["size"], spec.get("resized_to")
    if spec.get("low_res"):
        resized = f"Images have {size} × {size} pixels and are not resized."
    elif spec.get("center_crop"):
        resized = f"The shorter side is resized to {round(size * 8 / 7)} (bilinear), and the center is cut out."
    else:
        before = f"to {first[0]} × {first[1]} first, as in the run's cache, then " if first else ""
        resized = f"Images are resized {before}to {size} × {size} (bilinear, without keeping proportions)."
    return f"{resized} Classes: {', '.join(card['classes'])}."


def _algorithm(card: Mapping[str, Any]) -> tuple[type[Algorithm], Hyperparameters]:
    algorithm = get_algorithm(card["algorithm"])
    return algorithm, fill(algorithm.Hyperparameters, card["config"]["training"]["hyperparameters"])


def wraps_network(card: Mapping[str, Any]) -> bool:
    """Whether the algorithm's predictor is more than the network."""
    algorithm, _ = _algorithm(card)
    return algorithm.wrap_predictor.__func__ is not Algorithm.wrap_predictor.__func__  # type: ignore[attr-defined]


def _loading_code(file_name: str, card: Mapping[str, Any]) -> list[str]:
    if wraps_network(card) or not catalog.in_timm(card["network"]):
        own = [f"# SWAD_NETWORKS must name the folder of {card['network']}.py"] * catalog.is_own(card["network"])
        return ["import swad", *own, f'model, transform, class_names = swad.testbed.load_predictor("{file_name}")']
    channels = card["input"]["channels"]
    options = "" if channels == 3 else f", in_chans={channels}"
    if catalog.takes_image_size(card["network"], card["input"]["size"]):
        options += f", img_size={card['input']['size']}"
    return [
        "import timm",
        "from safetensors.torch import load_file",
        f'model = timm.create_model("{card["network"]}", num_classes={len(card["classes"])}{options})',
        f'model.load_state_dict(load_file("{file_name}"))',
    ]


def eval_group_size(card: Mapping[str, Any]) -> int | None:
    """Return how many images must be evaluated together, if predictions depend on the batch (ARM, MTL)."""
    algorithm, hyperparameters = _algorithm(card)
    return algorithm.eval_group_size(hyperparameters)


def _batch_dependence(card: Mapping[str, Any]) -> list[str]:
    size = eval_group_size(card)
    if size is None:
        return []
    return [
        f"Predict {size} images of one domain per batch, in random order with all classes mixed: each prediction "
        "depends on the rest of its batch, and a batch of one class is unlike those in training.",
        "",
    ]


def _joined(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)
