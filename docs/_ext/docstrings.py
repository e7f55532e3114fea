"""Docstrings as reStructuredText.

Docstrings are plain text: code stands between single backticks, and code blocks are indented.
"""

from __future__ import annotations

import re

HEADING = re.compile(r"(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note|Notes):$")


def rest(text: str) -> str:
    r"""Mark the indented blocks of a docstring as code, and escape what is no markup.

    >>> print(rest("Two lines:\n\n    averager.observe(loss)\n\nThen *args."))
    Two lines:
    <BLANKLINE>
    ::
    <BLANKLINE>
        averager.observe(loss)
    <BLANKLINE>
    Then \*args.
    """
    out: list[str] = []
    in_code = in_section = False
    before = ""  # the last line that is not blank
    for line in text.split("\n"):
        if not line.strip():
            out.append(line)
            continue
        indented = line.startswith("    ")
        if HEADING.match(line):
            in_section = True
        elif not indented:
            in_section = False
        if indented and not in_section and not in_code and out and not out[-1].strip() and not before.endswith("::"):
            out += ["::", ""]
        in_code = indented and not in_section
        is_doctest = line.lstrip().startswith((">>>", "..."))
        out.append(line if in_code or is_doctest else _escape(line))
        before = line.rstrip()
    return "\n".join(out)


def _escape(line: str) -> str:
    pieces = re.split(r"(`+[^`]*`+)", line)
    return "".join(piece if piece.startswith("`") else re.sub(r"(?<!\\)([*|])", r"\\\1", piece) for piece in pieces)
