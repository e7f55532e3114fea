"""Names that are imported on first use, against what type checkers and readers see of the same packages."""

import ast
import importlib
import inspect

import pytest

from swad.util.lazy import lazy_exports

PACKAGES = ("swad", "swad.flatness", "swad.testbed", "swad.testbed.results")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_is_the_one_that_type_checkers_see(package):
    module = importlib.import_module(package)
    (block,) = (
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {alias.name: imported.module for imported in block.body for alias in imported.names}
    assert {*seen} == {*module.__all__} - {"__version__"}
    for name, home in seen.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


def test_a_module_is_a_name_and_dir_lists_both():
    module = importlib.import_module("swad")
    assert module.compat.__name__ == "swad.compat"
    assert dir(module) == sorted([*module.__all__, "compat", "flatness", "integrations", "robustness", "testbed"])


def test_other_names_are_refused():
    get, _ = lazy_exports("swad.util", {"names": ("counted",)}, ["names"])
    with pytest.raises(AttributeError, match=r"module 'swad.util' has no attribute 'files'"):
        get("files")


def test_a_missing_package_is_named_with_the_extra_that_installs_it(tmp_path, monkeypatch):
    folder = tmp_path / "absent"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "inner.py").write_text("import there_is_none.of_this_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    get, _ = lazy_exports("absent", {"inner": ("thing",)}, ["inner"], extra="vision")
    for name in ("thing", "inner"):
        with pytest.raises(ImportError, match=rf"absent.{name} needs there_is_none: pip install 'swad\[vision\]'"):
            get(name)
