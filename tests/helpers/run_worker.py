"""Train one short run: `python run_worker.py RUN_DIR [CHANGES]`, also with the environment variables of torchrun."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from helpers.runs import short
from swad.training.loop import RunError, train


def train_short(run_dir: Path, changes: dict[str, object]) -> None:
    """Train a whole run in this process; a target for multiprocessing."""
    torch.set_num_threads(1)
    train(short(run_dir, **changes))


def main() -> None:
    torch.set_num_threads(1)
    changes = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    limit = os.environ.get("LIMIT_FILE_SIZE")
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    try:
        result = train(short(Path(sys.argv[1]), **changes))
    except RunError as error:
        print(f"RunError: {error}")
        sys.exit(3)
    print(json.dumps(result.to_json()))


if __name__ == "__main__":
    main()
