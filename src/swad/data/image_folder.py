"""Reading ``<domain>/<class>/<image>``: the shape of every file benchmark and of any folder of one's own.

The policy, so that labels can never shift and nothing is swallowed:

- Domains, classes and images are taken in sorted order. Classes are the sorted union over all domains, so a class
  that one domain lacks leaves the labels of the others alone (it is noted by ``check``).
- A known benchmark reads its own domains and no other folder; in a folder of one's own every folder is a domain,
  and one that holds no images is an error.
- A class without images in any domain, a folder inside a class folder and a class with two spellings, of case or of
  accents in Unicode, are errors.
- Hidden files and folders and ``__MACOSX`` are skipped, as are files that are not images by their extension; those
  are counted and named.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swad.data.benchmark import Benchmark, Options
from swad.data.domains import DataError, Dataset, Domain, FileDomain

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class Tree:
    """What was found below a folder: ``files[domain][class]`` is a sorted list of file names."""

    path: Path
    folders: dict[str, str]
    files: dict[str, dict[str, list[str]]]
    stray: tuple[str, ...]
    nested: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """The sorted union of the class folders of all domains."""
        return tuple(sorted({name for domain in self.files.values() for name in domain}))

    def count(self, domain: str) -> int:
        """Images in a domain."""
        return sum(len(files) for files in self.files[domain].values())

    def relative(self) -> Iterable[str]:
        """Every image, relative to the tree."""
        for domain, classes in self.files.items():
            for name, files in sorted(classes.items()):
                for file in files:
                    yield f"{self.folders[domain]}/{name}/{file}"


def locate(benchmark: Benchmark, root: Path | None) -> Path:
    """The folder that holds a benchmark's domains: ``root`` itself or the benchmark's folder in it."""
    if root is None:
        raise DataError(
            f"{benchmark.name} is read from a folder: say which one holds {benchmark.folder or 'its domains'} (--data)"
        )
    if not root.is_dir():
        raise DataError(f"{benchmark.name} is read from a folder, but {root} is not one; check the path")
    if not benchmark.domains:
        return root
    known = {*benchmark.domains, *benchmark.aliases}
    for candidate in (root / benchmark.folder, root):
        if candidate.is_dir() and known & set(_folders(candidate)):
            return candidate
    raise DataError(
        f"no domain of {benchmark.name} ({', '.join(benchmark.domains)}) is in {root} or {root / benchmark.folder}; "
        f"run `swad datasets fetch {benchmark.name}` or give the folder that holds them"
    )


def scan(benchmark: Benchmark, path: Path, options: Options | None = None) -> Tree:
    """List the images of a benchmark's tree, excluded ones left out; opens no image."""
    chosen = tuple((options or {}).get("domains") or benchmark.domains)
    found = _folders(path)
    folders = {benchmark.aliases.get(name, name): name for name in found}
    wanted = chosen or tuple(found)
    excluded = benchmark.excluded(path, options or {}) if benchmark.excluded else frozenset()
    files: dict[str, dict[str, list[str]]] = {}
    nested: list[str] = []
    others: list[str] = []
    for domain in sorted(wanted):
        if domain not in folders:
            continue
        folder = folders[domain]
        files[domain] = {}
        for name in _folders(path / folder):
            images: list[str] = []
            for entry in _entries(path / folder / name):
                if entry.name.startswith("."):
                    continue
                relative = f"{folder}/{name}/{entry.name}"
                if entry.is_dir():
                    nested.append(relative)
                elif os.path.splitext(entry.name)[1].lower() not in EXTENSIONS:
                    others.append(relative)
                elif relative not in excluded:
                    images.append(entry.name)
            files[domain][name] = sorted(images)
    stray = tuple(sorted(folders[name] for name in folders if name not in files))
    return Tree(path, {d: folders[d] for d in files}, files, stray, tuple(sorted(nested)), tuple(sorted(others)))


def problems(benchmark: Benchmark, tree: Tree, options: Options | None = None) -> list[str]:
    """What makes a tree unfit to be read at all, one line each."""
    chosen = tuple((options or {}).get("domains") or benchmark.domains)
    lines = [f"domain {name} is missing" for name in sorted(set(chosen) - set(tree.files))]
    if not tree.files and not chosen:
        lines.append("it holds no domain; expected folders of the shape <domain>/<class>/<image>")
    lines += [f"folder {name} lies inside a class folder; images must lie directly in it" for name in tree.nested]
    for domain in tree.files:
        if tree.count(domain) == 0:
            lines.append(f"folder {tree.folders[domain]} holds no <class>/<image>; remove it or fill it")
    for name in tree.classes:
        if not any(tree.files[domain].get(name) for domain in tree.files):
            lines.append(f"class {name} has no image in any domain; remove its folders or fill them")
    lines += _spelling_problems(tree.classes)
    if benchmark.classes is not None:
        strange = [name for name in tree.classes if name not in benchmark.classes]
        lost = [name for name in benchmark.classes if name not in tree.classes]
        lines += [f"class {name} does not belong to {benchmark.name}" for name in strange]
        lines += [f"class {name} is missing in every domain" for name in lost]
    elif benchmark.n_classes is not None and len(tree.classes) != benchmark.n_classes:
        lines.append(f"{len(tree.classes)} classes found, expected {benchmark.n_classes}")
    return lines


def count_problems(benchmark: Benchmark, tree: Tree) -> list[str]:
    """Domains with another number of images than published, one line each."""
    if not benchmark.counts:
        return []
    found = {domain: tree.count(domain) for domain in tree.files}
    if sum(found.values()) in benchmark.other_totals and set(found) == set(benchmark.counts):
        return []
    return [
        f"domain {domain} has {found.get(domain, 0)} images, expected {expected}"
        for domain, expected in benchmark.counts.items()
        if found.get(domain, 0) != expected
    ]


def others_note(tree: Tree) -> list[str]:
    """What was skipped, in one line where there is any."""
    if not tree.others:
        return []
    return [f"{len(tree.others):,} files are no images by their extension and are not read, e.g. {tree.others[0]}"]


def read_tree(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Make a dataset of a tree; with ``check_counts`` the published counts must hold."""
    path = locate(benchmark, root)
    tree = scan(benchmark, path, options)
    wrong = problems(benchmark, tree, options)
    counts = count_problems(benchmark, tree) if check_counts else []
    if wrong or counts:
        advice = "run `swad datasets check` on it" + (
            "" if wrong else ", or accept it with --allow-count-mismatch (check_counts=False)"
        )
        raise DataError(f"{benchmark.name} at {path}: {'; '.join(_some(wrong + counts))}; {advice}")
    classes = tree.classes
    number = {name: i for i, name in enumerate(classes)}
    domains: list[Domain] = []
    for domain in tree.files:
        by_class = sorted(tree.files[domain].items())
        labels = np.repeat([number[c] for c, _ in by_class], [len(files) for _, files in by_class])
        folder = tree.folders[domain]
        paths = tuple(f"{folder}/{c}/{file}" for c, files in by_class for file in files)
        domains.append(FileDomain(domain, labels.astype(np.int64), path, paths))
    name = benchmark.name if benchmark.domains else path.resolve().name
    return Dataset(name, tuple(domains), classes, benchmark.image_spec, benchmark.defaults, tuple(others_note(tree)))


def _folders(path: Path) -> list[str]:
    return sorted(e.name for e in _entries(path) if e.is_dir() and not e.name.startswith(".") and e.name != "__MACOSX")


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(path))
    except PermissionError:
        raise DataError(f"may not read the folder {path}; give yourself the right to, or leave it away") from None


def _spelling_problems(names: tuple[str, ...]) -> list[str]:
    """Names that are one to a reader: in upper and lower case, or with accents as one sign and as two."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()), []).append(name)
    lines = []
    for same in spelled.values():
        if same[1:]:
            looks = len({unicodedata.normalize("NFC", name) for name in same})
            how = "case" if looks == len(same) else "how Unicode writes their accents (NFC, NFD)"
            lines.append(f"classes {' and '.join(same)} differ only in {how}; give them one name")
    return lines


def _some(lines: list[str], most: int = 8) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more"]
