"""Text that reaches a terminal holds no control characters of names, and is written in any encoding."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress
from rich.table import Table

from helpers.python_process import start_python
from swad.util.terminal import make_console, printable

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31mname\r\x9b1m\u202e"


@given(st.text(st.characters(codec=None)))
def test_printable_text_has_no_control_characters_and_keeps_all_others(text: str) -> None:
    shown = printable(text)
    assert shown.isascii() or shown.encode()
    assert all(character in "\n\t" or character >= " " for character in shown)
    assert not any("\x7f" <= character <= "\x9f" for character in shown)
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


def test_a_console_prints_names_without_their_escape_sequences() -> None:
    file = io.StringIO()
    console = make_console(file=file, force_terminal=True, width=300, color_system="standard")
    table = Table(title=ESCAPE)
    table.add_column(ESCAPE)
    table.add_row(f"[bold]{ESCAPE}")
    console.print(table, ESCAPE, style="red")
    with Progress(console=console) as bars:
        bars.add_task(ESCAPE, total=1)
    printed = file.getvalue()
    assert printed.count(r"\x1b]0;owned") == 5
    assert "\x1b]0;" not in printed
    assert "\x1b[2J" not in printed
    assert "\x9b" not in printed
    assert "\x1b[31m" in printed, "the style of the console itself"


STREAMS = """
import sys, warnings
from swad.util.terminal import make_console, protect_streams
protect_streams()
name = "caf\\u03b3\\udce9\\x1b[2J"
print(name)
make_console(width=300).print(name, "[bold]styled")
print("third", file=sys.stderr)
print("fourth", flush=True)
"""


@pytest.mark.parametrize(("encoding", "greek"), [("latin-1", r"\u03b3"), ("ascii", r"\u03b3"), ("utf-8", "γ")])
def test_streams_of_any_encoding_print_any_name_in_order(
    monkeypatch: pytest.MonkeyPatch, encoding: str, greek: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    monkeypatch.setenv("PYTHONUTF8", "0")
    process = start_python(STREAMS)
    out, error = process.communicate()
    assert (process.returncode, error) == (0, "third\n")
    name = f"caf{greek}\\udce9\\x1b[2J"
    assert out.splitlines() == [name, f"{name} styled", "fourth"]
