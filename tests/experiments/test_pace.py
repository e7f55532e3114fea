"""How many runs at a time: added one by one as long as that pays."""

import pytest

from swad.experiments.pace import Pace


def simulate(throughput: dict[int, float], limit: int = 4, seconds: int = 200) -> Pace:
    """Runs that share `throughput[n]` steps a second, n of them at a time; each begins 3 s after it was started."""
    pace, begun, steps = Pace(limit), {0: 3.0}, {0: 0.0}
    for tick in range(seconds * 5):
        now = tick / 5
        under_way = [run for run, begin in begun.items() if now >= begin]
        for run in under_way:
            steps[run] += throughput[len(under_way)] / len(under_way) / 5
            pace.moved(str(run), int(steps[run]), now)
        if pace.wants_more(now):
            begun[len(begun)], steps[len(begun) - 1] = now + 3.0, 0.0
    assert pace.runs == len(begun)
    return pace


@pytest.mark.parametrize(
    ("throughput", "runs"),
    [
        ({1: 100, 2: 105, 3: 110, 4: 110}, 2),  # the second did not pay, and is under way now
        ({1: 100, 2: 180, 3: 190, 4: 190}, 3),
        ({1: 100, 2: 190, 3: 270, 4: 340}, 4),
    ],
)
def test_runs_are_added_while_they_pay(throughput, runs):
    pace = simulate(throughput)
    assert pace.runs == runs
    for n, rate in enumerate(pace.rates, 1):
        assert rate == pytest.approx(throughput[n], rel=0.1)
    assert pace.describe().startswith("1 side by side 100 steps/s, 2 side by side")


def test_the_limit_holds_and_an_end_begins_anew():
    assert simulate({1: 100, 2: 200}, limit=2).runs == 2
    pace = Pace(3)
    for second in range(13):
        pace.moved("a", second, second)
    assert pace.rate(12.0) == pytest.approx(1.0)
    pace.ended("a")
    assert pace.rate(12.0) is None
    assert not pace.wants_more(12.0)
