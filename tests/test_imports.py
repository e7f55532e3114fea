"""What `import swad` may cost."""

import subprocess
import sys

import pytest

HEAVY = ["torch", "numpy", "torchvision", "timm", "lightning", "transformers", "matplotlib", "sklearn", "rich", "PIL"]


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*{{m.partition('.')[0] for m in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize(
    "code",
    ["import swad", "from swad import LossValley, Phase; LossValley().observe(1.0)", "import swad; dir(swad)"],
)
def test_nothing_heavy_without_a_tensor(code):
    assert not modules_after(code) & set(HEAVY)


def test_the_core_needs_torch_alone():
    # numpy comes with torch where it is installed.
    code = "import swad\nfor name in swad.__all__: getattr(swad, name)\nimport swad.ablations, swad.integrations"
    assert modules_after(code) & set(HEAVY) <= {"torch", "numpy"}


def test_an_unknown_name_is_an_attribute_error():
    import swad

    with pytest.raises(AttributeError, match="no attribute 'SWADD'"):
        swad.SWADD  # noqa: B018
