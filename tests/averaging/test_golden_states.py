"""States that an earlier version saved load in every later one, and continue to the same averages.

A new version of the state gets files of its own, beside these. Once a release writes it, they never change again.

    PYTHONPATH=src:tests python tests/averaging/test_golden_states.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from helpers.averages import OneHot, weights_of
from swad import EMA, LAWA, SMA, SWA, SWAD, AverageGroup, LossValley
from swad.averaging.state import OLDEST, VERSION

pytestmark = [
    pytest.mark.filterwarnings("ignore::swad.averaging.swad.NeverConvergedWarning"),
    pytest.mark.filterwarnings("ignore::swad.averaging.swad.FalseStartWarning"),
]

GOLDEN = Path(__file__).parent / "golden"
CUT, LAST, EVERY = 18, 40, 4  # saved in mid-segment
LOSSES = [3.0, 1.0, 1.2, 1.5, 1.1, 1.3, 1.7, 1.8, 1.6, 1.9]
SINGLE = {
    "searching": lambda model: SWAD(model, n_converge=6),
    "paper": lambda model: SWAD(model, n_converge=2, n_tolerance=3),
    "stopped": lambda model: SWAD(model, n_converge=1, n_tolerance=1, tolerance_ratio=0.1),
    "text": lambda model: SWAD(model, n_converge=2, n_tolerance=3, semantics="text"),
    "reference": lambda model: SWAD(model, n_converge=2, n_tolerance=3, semantics="reference"),
    "interval": lambda model: SWAD(model, n_converge=2, interval=3),
    "buffers": lambda model: SWAD(model, n_converge=2, n_tolerance=math.inf, buffers="average"),
    "swa": lambda model: SWA(model, start=5, end=35, interval=5),
    "sma": lambda model: SMA(model, start=7),
    "ema": lambda model: EMA(model, 0.9),
    "warm_ema": lambda model: EMA(model, 0.9, warmup=True),
    "overfitted": lambda model: SWAD(model, n_converge=2, n_tolerance=1, tolerance_ratio=0),
    "scores": lambda model: SWAD(model, valley=LossValley(2, 3, mode="max", tolerance=0.5)),
    "late": lambda model: SWAD(model, valley=LossValley(2, 3, start=10)),
    "restart": lambda model: SWAD(model, valley=LossValley(1, 9, restart=True)),
    "late_reference": lambda model: SWAD(model, valley=LossValley(2, 3, semantics="reference", start=6)),
    "lawa": lambda model: LAWA(model, 2),
}
VERSIONS = range(OLDEST, VERSION + 1)  # each has its files


def states(version):
    return torch.load(GOLDEN / f"states-{version}.pt", weights_only=True)


def written(version):
    return json.loads((GOLDEN / f"outcomes-{version}.json").read_text())


def cases():
    """Every state in the files that there are."""
    return [
        (version, name)
        for version in VERSIONS
        if (GOLDEN / f"states-{version}.pt").exists()
        for name in states(version)
    ]


def group_of(model, names=tuple(name for name in SINGLE if name != "buffers")):
    return AverageGroup(model, {name: SINGLE[name](model) for name in names})


def walk(averager, first, last):
    model = averager.trajectory.tracked.model
    for step in range(first, last + 1):
        model.go_to(step)
        averager.update_parameters(model)
        if step % EVERY == 0:
            averager.observe(LOSSES[step // EVERY - 1])


def decided(status):
    return [str(status.phase), status.threshold or 0, *map(str, status.spans)]


def outcome(average):
    weights = {str(step): round(weight, 7) for step, weight in weights_of(average).items()}
    return {"weights": weights, "seen": average.averaged_state()["seen"].tolist(), "status": decided(average.status)}


def outcomes(averager):
    if isinstance(averager, AverageGroup):
        return {name: outcome(average) for name, average in averager.items()}
    return outcome(averager)


def close(found, wanted):
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    return found == (wanted if isinstance(wanted, str) else pytest.approx(wanted, abs=1e-6))


@pytest.mark.parametrize(("version", "name"), cases())
def test_a_saved_state_continues(version, name):
    wanted, model = written(version)[name], OneHot(LAST + 1)
    averager = group_of(model, wanted) if name == "group" else SINGLE[name](model)
    averager.load_state_dict(states(version)[name])
    walk(averager, CUT + 1, LAST)
    assert close(outcomes(averager), wanted)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["paper", "reference", "interval", "sma", "warm_ema"])
def test_a_member_of_a_saved_group_continues_alone(name, version):
    average = SINGLE[name](OneHot(LAST + 1))
    average.load_state_dict(AverageGroup.member_state(states(version)["group"], name))
    walk(average, CUT + 1, LAST)
    assert close(outcome(average), written(version)["group"][name])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("semantics", ["paper", "text", "reference"])
def test_a_saved_detector_continues(semantics, version):
    saved = written(version)["detectors"][semantics]
    valley = LossValley(2, 3, semantics=semantics)
    valley.load_state_dict(saved["state"])
    for loss in LOSSES[5:]:
        valley.observe(loss)
    assert decided(valley.status) == saved["status"]


def test_a_state_without_a_later_setting_belongs_to_its_default():
    state = written(2)["detectors"]["paper"]["state"]
    assert "mode" not in state
    with pytest.raises(ValueError, match="settings it was saved with: mode 'min' in the state, 'max' here"):
        LossValley(2, 3, mode="max").load_state_dict(state)


def main():
    saved, wanted = {}, {"detectors": {}}
    for name, make in {**SINGLE, "group": group_of}.items():
        averager = make(OneHot(LAST + 1))
        walk(averager, 1, CUT)
        saved[name] = averager.state_dict()
        walk(averager, CUT + 1, LAST)
        wanted[name] = outcomes(averager)
    for semantics in ("paper", "text", "reference"):
        valley = LossValley(2, 3, semantics=semantics)
        for loss in LOSSES[:5]:
            valley.observe(loss)
        state = valley.state_dict()
        for loss in LOSSES[5:]:
            valley.observe(loss)
        wanted["detectors"][semantics] = {"state": state, "status": decided(valley.status)}
    torch.save(saved, GOLDEN / f"states-{VERSION}.pt")
    (GOLDEN / f"outcomes-{VERSION}.json").write_text(json.dumps(wanted, indent=1) + "\n")


if __name__ == "__main__":
    main()
