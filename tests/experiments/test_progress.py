"""How runs in progress are displayed."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time

import pytest

from helpers.commands import SWAD, environment


@pytest.mark.slow
def test_bars_in_a_terminal(tmp_path):
    """On a real pseudo-terminal: bars with the loss, the phase and the time left."""
    parent, child = pty.openpty()
    command = [*SWAD, "train", "digits", "-t", "paper", "--steps", "300", "--evaluate-every", "10", "-o", str(tmp_path)]
    process = subprocess.Popen(command, stdout=child, stderr=child, env=environment() | {"TERM": "xterm-256color"})
    os.close(child)
    seen = b""
    deadline = time.time() + 120
    while time.time() < deadline:
        ready, _, _ = select.select([parent], [], [], 0.2)
        if ready:
            try:
                part = os.read(parent, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
    os.close(parent)
    assert process.wait(timeout=30) == 0
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen).decode(errors="replace")
    assert re.search(r"paper-0 .*\d+/300 .*loss \d", text)
    assert "searching" in text or "averaging" in text
