"""What `import swad` may cost."""

import pytest

from helpers.imports import HEAVY, modules_after, output_with_torch_alone
from helpers.torch_versions import require_testbed


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


@pytest.mark.slow
def test_averages_work_with_torch_alone():
    code = """
import torch, swad, swad.integrations.timm
model = torch.nn.Linear(2, 1)
group = swad.AverageGroup(model, {"swad": swad.SWAD(model), "ema": swad.EMA(model)})
for _ in range(9):
    group.update_parameters(model)
    group.observe(1.0)
group.load_state_dict(group.state_dict())
print(group["swad"].status.n_averaged)
"""
    assert output_with_torch_alone(code).splitlines() == ["9"]


@pytest.mark.slow
def test_the_benchmark_says_what_to_install_with_torch_alone():
    require_testbed()  # on an older torch it is torch that is missing first
    code = """
import operator, swad
for name in ("train", "robustness.corruptions"):
    try:
        operator.attrgetter(name)(swad)
    except ImportError as error:
        print(error)
"""
    assert output_with_torch_alone(code).splitlines() == [
        "swad.testbed.train needs numpy: pip install 'swad[vision]'",
        "swad.robustness.corruptions needs numpy: pip install 'swad[vision]'",
    ]


def test_an_unknown_name_is_an_attribute_error():
    import swad

    with pytest.raises(AttributeError, match="no attribute 'SWADD'"):
        swad.SWADD  # noqa: B018
