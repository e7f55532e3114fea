"""Names that users type, compared loosely and with suggestions, and nouns in messages."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePath

NO_TARGET = "none"
"""The target of a run that holds no domain out and trains on all of them."""


def plain(name: str) -> str:
    """Return a name without case, spaces and punctuation, for comparisons.

    >>> plain("Office-Home") == plain("office_home")
    True
    """
    return "".join(c for c in name.lower() if c.isalnum())


def is_name(value: object) -> bool:
    """Return whether a value can be a name in tables, messages and files: text in UTF-8 without control characters.

    >>> is_name("Bonn, Main Street"), is_name("da\\nta"), is_name("caf\\udce9"), is_name(""), is_name(5)
    (True, False, False, False, False)
    """
    if not isinstance(value, str) or not value or not is_utf8(value):
        return False
    return not any(unicodedata.category(letter) == "Cc" for letter in value)  # a line break would garble tables


def is_utf8(text: str) -> bool:
    """Return whether a text can be written; a file's name of other bytes cannot.

    >>> is_utf8("café"), is_utf8(b"caf\\xe9".decode(errors="surrogateescape"))
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_problem(what: str, name: object) -> str | None:
    """Say why a name cannot be that of runs and their directories; None if it can.

    >>> name_problem("the target", "../../x")
    "the target must be a name without control characters, and not outside of its folder, got '../../x': rename it"
    """
    if is_name(name) and not PurePath(str(name)).is_absolute() and ".." not in PurePath(str(name)).parts:
        return None
    return f"{what} must be a name without control characters, and not outside of its folder, got {name!r}: rename it"


def file_stem(parts: Iterable[str]) -> str:
    """Join names to the name of a file, without what a shell would have to quote.

    >>> file_stem(("digits, no target", "coral+sam"))
    'digits-no-target-coral+sam'
    """
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts))


def snapshot_name(step: int) -> str:
    """Return the name of the live weights of a step.

    >>> snapshot_name(400)
    'step-000400'
    """
    return f"step-{step:06d}"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural.

    >>> counted(1, "file"), counted(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{n:,} {noun}{'s' * (n != 1)}"


def listed(names: Iterable[object], most: int = 3) -> str:
    """Join the first names and count the others.

    >>> listed(["conv1", "bn1", "layer1", "fc", "head"])
    'conv1, bn1, layer1 and 2 more'
    """
    texts = list(map(str, names))
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if texts[most:] else "")


def one_line(error: BaseException, most: int | None = None) -> str:
    """Return what an error says in one line, cut to `most` characters; its class if it says nothing.

    >>> one_line(ValueError("no\\n  memory")), one_line(MemoryError())
    ('no memory', 'MemoryError')
    """
    return " ".join(str(error).split())[:most] or type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the known name closest to `name`; "" if none is close.

    A name with a comma is suggested for each of its parts, in the quotes that keep it whole on a command line.

    >>> did_you_mean("corral", ["coral", "erm"])
    "did you mean 'coral'?"
    >>> print(did_you_mean("Jane", ["Bonn, Main Street, Jane", "photo"]))
    did you mean '"Bonn, Main Street, Jane"'?
    """
    names = list(known)
    parts = {plain(part): f'"{candidate}"' for candidate in names if "," in candidate for part in candidate.split(",")}
    whole = {plain(candidate): f'"{candidate}"' if "," in candidate else candidate for candidate in names}
    by_plain_name = {**parts, **whole}
    closest = difflib.get_close_matches(plain(name), by_plain_name, n=1)
    return f"did you mean {by_plain_name[closest[0]]!r}?" if closest else ""


def choice_problem(name: str, value: object, choices: Iterable[str]) -> str:
    """Say that a value is none of the choices, and which one was probably meant.

    >>> choice_problem("semantics", "papper", ("paper", "text"))
    "semantics must be one of paper, text, got 'papper': did you mean 'paper'?"
    """
    choices = list(dict.fromkeys(choices))
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"{name} must be one of {', '.join(choices)}, got {value!r}{hint and f': {hint}'}"


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a ValueError if a value is none of the choices."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(choice_problem(name, value, choices))
