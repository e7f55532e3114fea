"""Which modules an import loads, and what works where packages are missing."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["torch", "numpy", "torchvision", "timm", "lightning", "transformers", "matplotlib", "sklearn", "rich", "PIL"]
OPTIONAL = [*HEAVY[1:], "safetensors", "scipy", "pandas", "typer"]


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*{{m.partition('.')[0] for m in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def output_with_torch_alone(code: str) -> str:
    """Run code in a process that can import no package of an extra, and return what it wrote to stdout."""
    script = f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL}))\n{code}"
    return subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
