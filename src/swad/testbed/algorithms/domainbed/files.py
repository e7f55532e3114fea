"""Find classes of DomainBed's form by ``FILE:CLASS``, and import their file.

``path/to/algorithms.py:CLASS`` adds that file to SWAD_ALGORITHMS, so that processes which this one starts find it, too.
The name is then ``algorithms:CLASS``, as for a file in a folder of that variable. Nothing is executed to find a class.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from swad.testbed.algorithms import AlgorithmError
from swad.util.names import did_you_mean, listed
from swad.util.plugins import import_problem

VARIABLE = "SWAD_ALGORITHMS"
ANNOUNCED = "SWAD_ANNOUNCED_FILES"
"""The files whose execution was announced, by this process or by the one that started it."""
REGISTRY = "hparams_registry"
_PACKAGES = {
    "backpack": "backpack-for-pytorch",
    "clip": "git+https://github.com/openai/CLIP.git",
    "cv2": "opencv-python",
    "sklearn": "scikit-learn",
}
"""What to install for an import, where the names differ."""


def files() -> list[Path]:
    """Return the files that may define classes of this form, named in SWAD_ALGORITHMS or in one of its folders."""
    entries = [Path(entry) for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    found = [path for entry in entries for path in ([entry] if entry.suffix == ".py" else sorted(entry.glob("*.py")))]
    return list(dict.fromkeys(path.resolve() for path in found if path.is_file()))


def canonical_name(name: str) -> str:
    """Return ``FILE:CLASS`` for that name or for a path; the file of a path is added to SWAD_ALGORITHMS."""
    file, _, class_name = name.rpartition(":")
    if file.endswith(".py"):
        path = Path(file).expanduser().resolve()
        if not path.is_file():
            raise AlgorithmError(
                f"an algorithm of DomainBed's form is named PATH/algorithms.py:CLASS, but there is no {path}"
            )
        _require_class(path, class_name)
        if path not in files():
            os.environ[VARIABLE] = os.pathsep.join(filter(None, [os.environ.get(VARIABLE), str(path)]))
        file = path.stem
    find(f"{file}:{class_name}")
    return f"{file}:{class_name}"


def find(name: str) -> Path:
    """Return the file of a canonical name."""
    stem, _, class_name = name.partition(":")
    paths = [path for path in files() if path.stem == stem]
    if not paths:
        raise AlgorithmError(
            f"there is no file {stem}.py for the algorithm {name}: name it or its folder in {VARIABLE}"
        )
    defining = [path for path in paths if class_name in _classes(path)]
    if not defining:
        _require_class(paths[0], class_name)
    if len(defining) > 1:
        raise AlgorithmError(
            f"the algorithm {name} must be in one file, got {listed(map(str, defining))}: rename one of the files"
        )
    return defining[0]


def algorithms(path: Path) -> list[str]:
    """Return the names of a file's classes that are derived from others, if one of them has a `predict`."""
    classes = _classes(path).values()
    if "predict" not in {item.name for node in classes for item in node.body if isinstance(item, ast.FunctionDef)}:
        return []
    derived = [node.name for node in classes if any(isinstance(base, ast.Name) for base in node.bases)]
    return [name for name in derived if not name.startswith("Abstract")]


def _require_class(path: Path, name: str) -> None:
    if name not in _classes(path):
        known = algorithms(path)
        hint = did_you_mean(name, known) or f"choose one of {', '.join(known)}"
        raise AlgorithmError(f"there is no class {name!r} in {path}: {hint}")


def _classes(path: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _parse(path, path.stat().st_mtime_ns).body if isinstance(node, ast.ClassDef)}


@cache
def _parse(path: Path, _changed: int) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise AlgorithmError(f"cannot read {path}{line}: {error}; correct the file") from None


@cache
def load(path: Path) -> tuple[ModuleType, ModuleType | None]:
    """Import a file and the `hparams_registry.py` beside it, if there is one. Their code is executed.

    `domainbed` is then the folder of this name that contains the file, or else the folder of the file.
    """
    from swad.testbed.algorithms.domainbed import stand_ins  # needs torch, which looking up names does not

    root = next((parent for parent in path.parents if parent.name == "domainbed"), path.parent)
    _announce(path)
    with stand_ins.installed(root):
        module = _import(path, root)
        folder = next((folder for folder in (path.parent, root) if (folder / f"{REGISTRY}.py").is_file()), None)
        return module, None if folder is None else _import(folder / f"{REGISTRY}.py", root)


def _announce(path: Path) -> None:
    announced = os.environ.get(ANNOUNCED, "").split(os.pathsep)
    if str(path) not in announced:
        os.environ[ANNOUNCED] = os.pathsep.join([*announced, str(path)])
        print(f"executing {path} and what it imports: code that is not part of swad", file=sys.stderr, flush=True)


def _import(path: Path, root: Path) -> ModuleType:
    name = ".".join(("domainbed", *path.relative_to(root).with_suffix("").parts))
    try:
        return importlib.import_module(name)
    except Exception as error:  # the file may contain anything
        advice = "correct the file"
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing == "domainbed":
            advice = "name the file inside the folder `domainbed` of its own repository"
        elif missing:
            advice = f"install it with: pip install {_PACKAGES.get(missing, missing)}"
        raise AlgorithmError(f"{import_problem(error, str(path))}; {advice}") from error


def missing_packages(module: ModuleType) -> list[str]:
    """Return what to install for imports that a file tries, and leaves as None if they fail."""
    names = [name for name, value in vars(module).items() if value is None and not name.startswith("_")]
    return [_PACKAGES.get(name, name) for name in names]
