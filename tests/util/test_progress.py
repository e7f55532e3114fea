"""The progress bar is shown on terminals only."""

import io

import pytest
from rich.console import Console

from swad.util.progress import progress_bar


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_shown_on_a_terminal_only(terminal):
    output = io.StringIO()
    with progress_bar(Console(file=output, force_terminal=terminal, width=100)) as progress:
        progress("decoding images", 5, 10)
        progress("downloading [x].zip", 5, None)
    assert ("decoding images" in output.getvalue()) is terminal
    assert ("downloading [x].zip" in output.getvalue()) is terminal
