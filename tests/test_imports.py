"""What `import swad` may cost."""

import pytest

from helpers.imports import HEAVY, modules_after


@pytest.mark.parametrize(
    "code",
    ["import swad", "from swad import LossValley, Phase; LossValley().observe(1.0)", "import swad; dir(swad)"],
)
def test_nothing_heavy_without_a_tensor(code):
    assert not modules_after(code) & set(HEAVY)


@pytest.mark.slow
def test_the_core_needs_torch_alone():
    # numpy comes with torch where it is installed.
    code = "import swad\nfor name in set(swad.__all__) - {'train'}: getattr(swad, name)\nimport swad.integrations"
    assert modules_after(code) & set(HEAVY) <= {"torch", "numpy"}


def test_an_unknown_name_is_an_attribute_error():
    import swad

    with pytest.raises(AttributeError, match="no attribute 'SWADD'"):
        swad.SWADD  # noqa: B018
