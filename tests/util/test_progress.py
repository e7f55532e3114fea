"""The progress bar is shown on terminals only, and times have two units."""

import io

import pytest
from rich.console import Console

from swad.util.progress import count_progress, duration, progress_bar


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_shown_on_a_terminal_only(terminal):
    output = io.StringIO()
    with progress_bar(Console(file=output, force_terminal=terminal, width=100)) as progress:
        progress("decoding images", 5, 10)
        progress("downloading [x].zip", 5, None)
    assert ("decoding images" in output.getvalue()) is terminal
    assert ("downloading [x].zip" in output.getvalue()) is terminal


def test_durations_have_two_units():
    assert [duration(s) for s in (0, 9.96, 59.4, 59.6, 3599, 3600, 90061)] == [
        "0.0 s",
        "10 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "1 d 1 h",
    ]


def test_steps_are_counted_for_whoever_asks():
    calls = []
    for progress in (None, lambda *call: calls.append(call)):
        report = count_progress(progress, "walking", 2)
        report(1)
        report(2)
    assert calls == [("walking", 1, 2), ("walking", 2, 2)]
