"""`swad merge`: many checkpoints into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swad.cli import _options as parse
from swad.cli._options import DataNow, Device, Workers

EXAMPLES = """
swad merge runs/PACS/erm/sketch-* --greedy
swad merge runs/PACS/erm/sketch-0 --weights snapshots --last 5
swad merge runs/PACS/erm/sketch-0 --weights segments --decay 1-sqrt -o wsm.safetensors
swad merge fine-tuned.safetensors --initial pretrained.safetensors --alpha 0.5
"""


def merge(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_OR_FILE",
            help="Run directories, directories of runs, .safetensors files, files of torch.save or Lightning, and "
            "folders of Hugging Face; the oldest first.",
        ),
    ],
    weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar=parse.NAMES,
            help="Which weights of each run: e.g. last, best, swad, a step such as 2500, snapshots for all of them, or "
            "segments for the means of the segments it kept, each of which counts the same. Default: last.",
        ),
    ] = None,
    greedy: Annotated[
        bool,
        typer.Option(
            "--greedy",
            help="Begin with the checkpoint of the highest accuracy on the sources' validation images, and take each "
            "other one only if the accuracy does not fall.",
        ),
    ] = False,
    last: Annotated[int | None, typer.Option(help="Merge only the last checkpoints (LAWA).")] = None,
    decay: Annotated[
        str | None,
        typer.Option(help="Emulate a decay of the learning rate (WSM): 1-sqrt, linear or cosine."),
    ] = None,
    coefficients: Annotated[
        list[str] | None,
        typer.Option(metavar=parse.NUMBERS, help="How much each checkpoint counts, e.g. 1,1,2. Default: all the same."),
    ] = None,
    initial: Annotated[
        Path | None, typer.Option(help="Weights before fine-tuning, to interpolate with (WiSE-FT).")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Share of the merged checkpoints next to --initial, 0 to 1. Default: 0.5.")
    ] = None,
    update_bn: Annotated[
        bool, typer.Option("--update-bn", help="Estimate batch norms again on the training images of the first run.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("merged.safetensors"),
    data: DataNow = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Merge checkpoints of one architecture into one file of weights: sum c_j theta_j, tensor by tensor.

    The file keeps the model card of a run, so that it can be used wherever a run's weights can.
    """
    from swad.cli._console import print_notes, short_warnings
    from swad.merging.merge import choose, require_new_file
    from swad.merging.weighted_mean import weighted_mean
    from swad.testbed.measure.merge_runs import (
        RunScorer,
        build_bn_estimate,
        find_checkpoints,
        save_merged,
        split_notes,
        with_batch_norms,
    )
    from swad.testbed.measure.saved_run import find_device
    from swad.util.progress import progress_report

    if alpha is not None and initial is None:
        raise ValueError("--alpha needs --initial, the weights that the merged ones are interpolated with")
    shares = list(parse.numbers("coefficients", coefficients)) or None
    where = find_device(device)
    found = find_checkpoints(checkpoints, parse.words(weights) or ["last"], data)
    require_new_file(output, [*found.files, *([] if initial is None else [initial])])
    run = found.require_runs("--greedy" if greedy else "--update-bn") if greedy or update_bn else None
    estimate = build_bn_estimate(run, where, workers) if update_bn and run else None
    print_notes(found.notes + (split_notes(found.runs) if greedy else []))
    with short_warnings(), progress_report() as progress:
        chosen, counts = choose(
            found.files,
            shares,
            last,
            decay,  # type: ignore[arg-type]
            RunScorer(run, where, workers, estimate) if greedy and run else None,
            initial,
            0.5 if alpha is None else alpha,
            lambda step: print(step, flush=True),
            progress,
        )
        merged = weighted_mean(chosen, counts, progress)
        if run and estimate:
            merged = with_batch_norms(merged, run, where, estimate)
        written = save_merged(output, merged, chosen, counts)
    print(f"merged {sum(count > 0 for count in counts)} of {len(found.files) + (initial is not None)} checkpoints")
    for path in written:
        print(f"wrote {path}")
