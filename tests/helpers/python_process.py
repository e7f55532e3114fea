"""Python code in a process of its own, for tests that kill it or limit it."""

import subprocess
import sys


def start_python(code: str, *arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
    """Start an interpreter that runs `code`; the caller waits for it or kills it."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
