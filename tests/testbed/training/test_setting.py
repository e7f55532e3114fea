"""The declaration of a setting and the checks that follow from it."""

from __future__ import annotations

import dataclasses

import pytest

from swad.testbed.training.config import SETTINGS
from swad.testbed.training.setting import setting


@pytest.mark.parametrize(
    ("name", "types", "choices", "optional"),
    [
        ("steps", (int,), (), True),
        ("trial", (int,), (), False),
        ("freeze_bn", (bool,), (), True),
        ("check_counts", (bool,), (), False),
        ("engine", None, ("auto", "eager", "graph", "compile"), False),
        ("precision", None, ("fp32", "bf16"), True),
    ],
)
def test_types_and_choices_follow_from_the_annotation(name, types, choices, optional):
    declared = SETTINGS[name]
    assert declared.choices == choices
    assert declared.optional is optional
    assert types is None or declared.types == types


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("steps", (None, 1), (0, 1.0, True, "1", 2**63)),
        ("trial", (0, 2, 2**63 - 1), (None, -1, 2**63)),
        ("precision", (None, "bf16"), ("fp8", 16)),
        ("clip", (None, 1, 0.5), ("1", False)),
        ("deterministic", (True, False), (None, 1)),
        ("device", ("cpu",), (None, 0)),
    ],
)
def test_values_are_checked_against_the_declaration(name, valid, invalid):
    assert not [value for value in valid if SETTINGS[name].problem(value)]
    for value in invalid:
        assert str(SETTINGS[name].problem(value)).endswith(f", got {value!r}")


def test_only_machine_and_output_settings_may_change_on_resume_by_default():
    @dataclasses.dataclass
    class Section:
        lr: float = setting(0.1, role="hyperparameter", help="Learning rate.")
        device: str = setting("cpu", role="machine", help="Device.")
        threads: int = setting(1, role="machine", help="Threads.", free_on_resume=False)

    free = {field.name: field.metadata["free_on_resume"] for field in dataclasses.fields(Section)}
    assert free == {"lr": False, "device": True, "threads": False}
