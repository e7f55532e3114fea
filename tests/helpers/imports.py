"""Which modules an import loads."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["torch", "numpy", "torchvision", "timm", "lightning", "transformers", "matplotlib", "sklearn", "rich", "PIL"]


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*{{m.partition('.')[0] for m in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
