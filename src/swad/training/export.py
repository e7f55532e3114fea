"""Models as safetensors, with a card: where the weights come from, how they did, how to load them.

The card is in the file's metadata as JSON and beside it as Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from swad.algorithms.base import Algorithm
from swad.algorithms.hyperparameters import Hyperparameters, fill
from swad.algorithms.registry import get_algorithm
from swad.models import networks
from swad.training.run_dir import write_whole


def save_weights(path: Path, weights: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Write weights and card, each whole or not at all."""
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
    metadata = {"format": "pt", "swad": json.dumps(card, default=str)}
    write_whole(path, lambda partial: save_file(tensors, partial, metadata=metadata))
    text = markdown(path.name, card)

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    write_whole(path.with_suffix(".md"), write)


def read_card(path: Path | str) -> dict[str, Any]:
    """The card inside a weights file."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        card: dict[str, Any] = json.loads(metadata["swad"])
    except KeyError:
        raise networks.NetworkError(f"{path} has no card: give a file that a run wrote") from None
    except Exception as error:  # safetensors has a class of its own
        reason = " ".join(str(error).split())
        raise networks.NetworkError(f"cannot read {path} as safetensors: {reason}") from None
    return card


def load_predictor(path: Path | str) -> nn.Module:
    """Build the predictor a weights file belongs to, as its algorithm wraps it, fill it, and set it to evaluation."""
    card = read_card(path)
    network = networks.build(
        card["network"], len(card["classes"]), channels=card["input"]["channels"], freeze_bn=card["freeze_bn"]
    )
    kind, hyperparameters = _algorithm(card)
    model = kind.wrap_predictor(network, hyperparameters)
    model.load_state_dict(networks.read_safetensors(Path(path)))
    return model.eval()


def _algorithm(card: Mapping[str, Any]) -> tuple[type[Algorithm], Hyperparameters]:
    kind = get_algorithm(card["algorithm"])
    return kind, fill(kind.Hyperparameters, card["config"]["hyperparameters"])


def _wrapped(card: Mapping[str, Any]) -> bool:
    """Whether the algorithm predicts in another way than by the network alone."""
    kind, _ = _algorithm(card)
    return kind.wrap_predictor.__func__ is not Algorithm.wrap_predictor.__func__  # type: ignore[attr-defined]


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's weights in host memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}


def markdown(name: str, card: Mapping[str, Any]) -> str:
    """The card for a reader."""
    lines = [
        f"# {name}",
        "",
        f"{card['what']}.",
        "",
        f"{card['network']}, trained with {card['algorithm']} on {card['dataset']} "
        f"({', '.join(card['sources'])}; held out: {', '.join(card['targets'])}), trial {card['trial']}, "
        f"{card['steps']:,} updates.",
        "",
    ]
    if card.get("range"):
        where = card["range"]
        lines += [f"Averaged: updates {where['spans']} ({where['n_averaged']:,} weights). {where['reason']}.", ""]
    if card.get("scores"):
        lines += ["| domain | split | accuracy, % | loss |", "|:--|:--|--:|--:|"]
        lines += [
            f"| {domain} | {split} | {100 * score['accuracy']:.2f} | {score['loss']:.4f} |"
            for domain, splits in card["scores"].items()
            for split, score in splits.items()
        ]
        lines.append("")
    size, mean, std = card["input"]["size"], card["input"]["mean"], card["input"]["std"]
    lines += [
        "## Loading",
        "",
        "```python",
        *_loading(name, card),
        "```",
        "",
        f"Input: {card['input']['channels']} × {size} × {size}, scaled to 0–1, mean {_list(mean)}, deviation "
        f"{_list(std)}. Classes: {', '.join(card['classes'])}.",
        "",
        *_grouping(card),
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


def _loading(name: str, card: Mapping[str, Any]) -> list[str]:
    if _wrapped(card) or card["network"] == networks.SMALL:
        return ["from swad.training.export import load_predictor", f'model = load_predictor("{name}")']
    channels = card["input"]["channels"]
    extra = "" if channels == 3 else f", in_chans={channels}"
    return [
        "import timm",
        "from safetensors.torch import load_file",
        f'model = timm.create_model("{card["network"]}", num_classes={len(card["classes"])}{extra})',
        f'model.load_state_dict(load_file("{name}"))',
    ]


def _grouping(card: Mapping[str, Any]) -> list[str]:
    kind, hyperparameters = _algorithm(card)
    group = kind.eval_group_size(hyperparameters)
    together = f"It predicts {group} images of one domain together: what it says of one depends on the others."
    return [] if group is None else [together, ""]


def _list(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)
