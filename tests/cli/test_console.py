from __future__ import annotations

import warnings

from swad.cli._console import measuring, short_warnings


def test_a_warning_is_shown_once_and_as_one_line(capsys):
    for context in (short_warnings, measuring):
        with context():
            for line in (1, 2):
                warnings.warn_explicit("mind the gap", UserWarning, "file.py", line)
        assert capsys.readouterr().err == "warning: mind the gap\n"
