"""Plugin files are found by name, and an error in one names the file and the line."""

import importlib
import os
import sys

import pytest

from swad.util.plugins import Registry


def check(value, name):
    if value < 0:
        raise ValueError(f"THING must be at least 0, got {value} in {name}.py")
    return value


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Return a function that makes the registry of a new package, whose variable names some folders."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "things"
    package.mkdir()
    (package / "__init__.py").write_text("")
    importlib.import_module("things")

    def make(*folders):
        monkeypatch.setenv("SWAD_THINGS", os.pathsep.join(map(str, folders)))
        return Registry("thing", "things", "SWAD_THINGS", "THING", check, KeyError, helpers=("base",))

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "things"]:
        del sys.modules[name]


def test_files_of_several_folders_are_found(registry, tmp_path):
    for name in ("things/b-side.py", "things/base.py", "one/_hidden.py", "two/A_1.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("THING = 3")
    things = registry(tmp_path / "one", tmp_path / "two")
    assert things.names() == ("A_1", "b-side")
    assert (things.match("a1"), things.match("B Side"), things.match("c")) == ("A_1", "b-side", None)
    assert things.get("A_1") == importlib.import_module("things.A_1").THING == 3
    (tmp_path / "two" / "b-side.py").write_text("")
    with pytest.raises(KeyError, match=r"thing names must be unique, but there are 2 files b-side.py: rename yours"):
        things.names()
    with pytest.raises(KeyError, match=r"SWAD_THINGS must name existing folders, got .*three: correct the variable"):
        registry(tmp_path / "three").names()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("x = (\n", KeyError, "cannot import {file}, line 1: SyntaxError: '(' was never closed; correct the file"),
        (
            "\nraise ValueError('two\\nlines')\n",
            KeyError,
            "cannot import {file}, line 2: ValueError: two lines; correct the file",
        ),
        ("import json\njson.loads('[')\n", KeyError, "cannot import {file}, line 2: JSONDecodeError: Expecting value"),
        ("assert False\n", KeyError, "cannot import {file}, line 1: AssertionError; correct the file"),
        ("THNG = 3", KeyError, "a file of a thing must define THING, but broken.py does not: add the line, or name a "),
        ("THING = -1", ValueError, "THING must be at least 0, got -1 in broken.py"),
    ],
)
def test_a_broken_file_is_named_with_its_line(registry, tmp_path, text, error, message):
    file = tmp_path / "mine" / "broken.py"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(error) as caught:
        registry(file.parent).get("broken")
    assert caught.value.args[0].startswith(message.format(file=file))
    assert "\n" not in caught.value.args[0]
