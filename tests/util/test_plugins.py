"""Plugin files are found by name, and an error in one names the file and the line."""

import sys

import pytest

from swad.util.plugins import PluginError, find_plugins, import_plugin


def test_modules_of_several_folders_are_found(tmp_path):
    for name in ("one/b.py", "one/_hidden.py", "two/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert find_plugins(folders, "SWAD_THINGS", "thing") == ("a", "b")
    (tmp_path / "two" / "b.py").write_text("")
    with pytest.raises(PluginError, match=r"^thing names must be unique, but there are 2 files b.py: rename yours$"):
        find_plugins(folders, "SWAD_THINGS", "thing")
    with pytest.raises(PluginError, match=r"^SWAD_THINGS must name existing folders, got .*three: correct"):
        find_plugins([*folders, str(tmp_path / "three")], "SWAD_THINGS", "thing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (\n", "cannot import {file}, line 1: SyntaxError: '(' was never closed"),
        ("\nraise ValueError('two\\nlines')\n", "cannot import {file}, line 2: ValueError: two lines"),
        ("import json\njson.loads('[')\n", "cannot import {file}, line 2: JSONDecodeError: Expecting value: .*"),
        ("assert False\n", "cannot import {file}, line 1: AssertionError"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, monkeypatch, text, message):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "broken_plugin.py"
    file.write_text(text)
    with pytest.raises(PluginError) as caught:
        import_plugin("broken_plugin")
    expected, any_ending, _ = message.format(file=file).partition(".*")
    assert str(caught.value).startswith(expected) if any_ending else str(caught.value) == expected
