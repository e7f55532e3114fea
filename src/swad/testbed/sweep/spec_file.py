"""Read a sweep from a TOML file, whose keys are the options of `swad sweep run`.

algorithm = ["erm", "coral"]
dataset = ["PACS"]
protocol = "grid"

[grid]
lr = [1e-5, 3e-5, 5e-5]

[options]          # further settings of the runs, as `swad train` names them
steps = 2000
network = "resnet18"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from swad.testbed.sweep.appendix_b3 import NAME
from swad.testbed.sweep.spec import KEYS, key_problems
from swad.util.files import read_bytes


def read_spec_file(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a plan file that a spec accepts, and the problems of the others with the file's name.

    Both are returned, so that the problems can be listed together with those of the command line.
    """
    too_deep = f"{path} is nested too deeply: a plan holds lists of values, and tables of them"
    try:
        text = read_bytes(path).decode()
        content = tomllib.loads(text)
    except OSError as error:
        return {}, [f"cannot read the plan {path} ({error.strerror}): give a TOML file, or {NAME}"]
    except RecursionError:
        return {}, [too_deep]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return {}, [f"{path} is not valid TOML ({' '.join(str(error).split())})"]
    problems, values = [], {}
    for name, value in content.items():
        found = key_problems({name: value}, KEYS)
        problems += [f"{path}: {problem}" for problem in found]
        if not found:
            values[KEYS[name]] = value
    if isinstance(values.get("data"), str):
        # A path in a file is relative to the file: the sweep may be started from anywhere.
        values["data"] = str(path.parent / Path(values["data"]).expanduser())
    return values, problems
