"""What reaches a terminal: text without the escape sequences of names, in any encoding.

Names of folders, runs and files may come from somebody else. An escape sequence in one could recolor or overwrite what
a terminal shows, so control characters are shown as Python writes them. Rich's own sequences pass: `make_console` makes
its consoles, which clean the texts before rich adds them.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text with escapes for all control characters but line breaks and tabs.

    So are characters that turn the direction of writing, and halves of surrogate pairs: bytes that are not UTF-8.

    >>> print(printable("\x1b[31mdata, na\u00efve, \u202egpj, caf\udce9"))
    \x1b[31mdata, naïve, \u202egpj, caf\udce9
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Stream:
    """A stream that writes printable text, or all text; an error of the system names the stream."""

    def __init__(self, stream: IO[str], name: str, clean: bool = True) -> None:
        self._stream, self._name, self._clean = stream, name, clean

    @property
    def rich_proxied_file(self) -> _Stream:
        """Where rich writes instead, by its protocol: its escape sequences are its own."""
        return _Stream(self._stream, self._name, clean=False)

    def write(self, text: str) -> int:
        try:
            self._stream.write(printable(text) if self._clean else text)
        except OSError as error:
            error.filename = error.filename or self._name
            raise
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            error.filename = error.filename or self._name
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def protect_streams() -> None:
    """Let standard output and error write printable text only, in any encoding; one that is closed drops it."""
    closed: list[str] = []
    for name, title in (("stdout", "the standard output"), ("stderr", "the standard error")):
        stream = getattr(sys, name)
        if stream is None:  # closed; a file opened next would get its number, and what libraries print
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
            closed.append(title)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal in latin-1 has no Greek letters
            setattr(sys, name, _Stream(stream, title))
    if closed and sys.stderr is not None:
        print(f"warning: {closed[0]} is closed, so nothing is printed there", file=sys.stderr)


def make_console(**options: Any) -> Console:
    """Return a console of rich that prints names without their control characters.

    Args:
        options: Options of `rich.console.Console`.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class _Console(Console):
        def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    stream = sys.stderr if options.get("stderr") else sys.stdout
    # Named here, since a bar of rich puts another stream in its place while it is shown.
    return _Console(**{"file": getattr(stream, "rich_proxied_file", None), **options})
