"""Reading image files ``<domain>/<class>/<image>``: the layout of most benchmarks and of your own datasets.

These rules keep labels stable and report everything that is ignored:

- Domains, classes and images are read in sorted order. The classes are the sorted union over all domains, so a class
  that is missing in one domain does not shift the labels of the others.
- A known benchmark reads its own domains and ignores other folders. In a folder of your own, every subfolder is a
  domain, and one without images is an error.
- A class without images in any domain, a folder inside a class folder, a name that is not UTF-8, and two classes that
  differ only in case or in how Unicode encodes their accents are errors.
- The class folders of a domain may be in a folder ``images``, if there is nothing else in the domain's folder.
- A domain that shares no class with the others is an error.
- Images above or below the level of ``<domain>/<class>/<image>`` are named. If no image is at that level, the error
  says which level is missing.
- A folder of your own may also have no domains: class folders alone, ``<class>/<image>``, or class folders in
  ``train`` and ``val`` (and ``test``), which then are the split. Either is one domain, ``images``.
- In a folder of your own, a folder that holds runs is ignored: `swad train` writes to ``runs`` by default.
- Hidden files and folders and ``__MACOSX`` are ignored. Files without an image extension are ignored and counted.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from swad.testbed.data.benchmark import Benchmark, Options
from swad.testbed.data.domains import Dataset, FileDomain, IntArray
from swad.util.data_path import data_name
from swad.util.images import DataError, entries, image_files, is_image
from swad.util.names import counted, is_utf8, listed, name_problem

ONLY_DOMAIN = "images"
"""Name of the domain of a folder without domains."""
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Folder names that are splits, not domains."""


Oddity = Literal["unknown folder", "folder of runs", "nested folder", "other file", "shallow image"]
"""What a path is: a folder that is no domain of the benchmark; one that holds runs, such as the output of `swad train`
in the folder of the dataset; a folder inside a class folder; a file without an image extension; an image that is not in
a class folder, but in a domain's folder or above."""


@dataclass(frozen=True)
class Tree:
    """The image files below a folder."""

    path: Path
    required: tuple[str, ...]
    """Domains that the benchmark has, or that were requested. Empty: every folder is a domain."""
    folders: dict[str, str]
    """Folder name of each domain; "." if the class folders are in the folder itself."""
    files: dict[str, dict[str, list[str]]]
    """``files[domain][class]`` is a sorted list of paths below ``path``."""
    oddities: tuple[tuple[str, Oddity], ...] = ()
    """What is not an image of a class: its path, and what is odd about it."""
    is_split: bool = False
    """Whether the folders are not domains, but the splits of one domain."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The sorted union of the class folders of all domains."""
        return tuple(sorted({name for domain in self.files.values() for name in domain}))

    def odd(self, oddity: Oddity) -> list[str]:
        """Return the paths with an oddity."""
        return [path for path, what in self.oddities if what == oddity]

    def count(self, domain: str) -> int:
        """Return the number of images of a domain."""
        return sum(len(files) for files in self.files[domain].values())

    def domain_paths(self, domain: str) -> Iterable[str]:
        """Iterate over the paths of a domain's images, sorted by class."""
        for _, files in sorted(self.files[domain].items()):
            yield from files

    def domain_labels(self, domain: str) -> IntArray:
        """Return the class index of every image of a domain, in the order of `domain_paths`."""
        label = {name: i for i, name in enumerate(self.classes)}
        by_class = sorted(self.files[domain].items())
        labels = np.repeat([label[name] for name, _ in by_class], [len(files) for _, files in by_class])
        return labels.astype(np.int64)


def locate(benchmark: Benchmark, root: Path | None) -> Path:
    """Return the folder that contains a benchmark's domains: ``root``, or the benchmark's folder in it."""
    if root is None:
        folder = benchmark.folder or "the domains"
        raise DataError(f"dataset {benchmark.name} needs its data; give the folder that contains {folder} (--data)")
    if not root.is_dir():
        raise DataError(f"the data of {benchmark.name} must be in a folder, but {root} is not one; check the path")
    if not benchmark.domains:
        return root
    known = {*benchmark.domains, *benchmark.aliases}
    for candidate in (root / benchmark.folder, root):
        if candidate.is_dir() and known & set(_folders(candidate)):
            return candidate
    download = f"run `swad datasets download {benchmark.name}` or " if benchmark.sources else ""
    raise DataError(
        f"no domain of {benchmark.name} ({', '.join(benchmark.domains)}) is in {root} or {root / benchmark.folder}; "
        f"{download}give the folder that contains them"
    )


def required_domains(benchmark: Benchmark, options: Options) -> tuple[str, ...]:
    """Return the domains that a dataset must have; none if any are allowed."""
    requested = options.get("domains") or benchmark.domains
    if not isinstance(requested, str | list | tuple):
        raise DataError(f"the option domains of {benchmark.name} must be a list of names, got {requested!r}")
    return (requested,) if isinstance(requested, str) else tuple(requested)


def scan(benchmark: Benchmark, path: Path, options: Options) -> Tree:
    """List the images of a benchmark without opening them; excluded images are left out."""
    required = required_domains(benchmark, options)
    results = () if required else tuple(name for name in _folders(path) if _holds_runs(path / name))
    folders = {benchmark.aliases.get(name, name): name for name in _folders(path) if name not in results}
    if not required and _has_no_domains(path, list(folders)):
        folders = {ONLY_DOMAIN: "."}
    excluded = benchmark.excluded(path, options) if benchmark.excluded else frozenset()
    files: dict[str, dict[str, list[str]]] = {}
    oddities: list[tuple[str, Oddity]] = [(name, "folder of runs") for name in results]
    oddities += [(name, "shallow image") for name in image_files(path)]
    for domain in sorted(required or folders):
        if domain not in folders:
            continue
        folder = folders[domain] = _folder_of_classes(path, folders[domain])
        files[domain] = {}
        if folder != ".":
            oddities += [(f"{folder}/{name}", "shallow image") for name in image_files(path / folder)]
        for name in _folders(path / folder):
            if folder == "." and name in results:
                continue
            images: list[str] = []
            for entry in sorted(entries(path / folder / name), key=lambda entry: entry.name):
                if entry.name.startswith("."):
                    continue
                relative = _join(folder, f"{name}/{entry.name}")
                if entry.is_dir():
                    oddities.append((relative, "nested folder"))
                elif not is_image(entry.name):
                    oddities.append((relative, "other file"))
                elif relative not in excluded:
                    images.append(relative)
            files[domain][name] = images
    oddities += [(folder, "unknown folder") for domain, folder in sorted(folders.items()) if domain not in files]
    used = {domain: folders[domain] for domain in files}
    return Tree(path, required, used, files, tuple(oddities), is_split=not required and _are_splits(files))


def layout_problems(benchmark: Benchmark, tree: Tree) -> list[str]:
    """Return the reasons why a tree cannot be read, one line each."""
    if not tree.required and (wrong_level := _wrong_level(tree)):
        return [wrong_level]
    if tree.is_split and (classes := _untrained_classes(tree)):
        return [f"class {name} has images in {folder}, but not in train; add some" for name, folder in classes]
    problems = [f"domain {name} is missing" for name in sorted(set(tree.required) - set(tree.files))]
    if not tree.files and not tree.required:
        problems.append("it contains no domains; expected image files <domain>/<class>/<image>")
    problems += [
        f"folder {name} is inside a class folder; images must be directly in the class folder"
        for name in tree.odd("nested folder")
    ]
    for domain in tree.files:
        if tree.count(domain) == 0:
            folder = tree.folders[domain]
            shallow = [name for name in tree.odd("shallow image") if name.startswith(f"{folder}/")]
            problems.append(
                f"image {shallow[0]} is not in a class folder; move the images of {folder} to {folder}/<class>/<image>"
                if shallow
                else f"folder {folder} contains no <class>/<image>; remove it or add images"
            )
    for name in tree.classes:
        if not any(tree.files[domain].get(name) for domain in tree.files):
            problems.append(f"class {name} has no images in any domain; remove its folders or add images")
    present = {domain: {name for name, files in classes.items() if files} for domain, classes in tree.files.items()}
    for domain, own in present.items():
        elsewhere = set().union(*(others for other, others in present.items() if other != domain))
        if own and elsewhere and own.isdisjoint(elsewhere):
            problems.append(
                f"domain {domain} has the classes {listed(sorted(own))}, of which no other domain has one; name "
                "classes alike in all domains"
            )
    if len(tree.classes) == 1:
        problems.append(f"{tree.classes[0]} is the only class; images must be at <domain>/<class>/<image>")
    problems += _encoding_problems((*tree.folders.values(), *tree.classes)) + _spelling_problems(tree.classes)
    names = filter(is_utf8, tree.folders.values())
    problems += [problem for name in names if (problem := name_problem("the folder of a domain", name))]
    if benchmark.classes is not None:
        unknown = [name for name in tree.classes if name not in benchmark.classes]
        missing = [name for name in benchmark.classes if name not in tree.classes]
        problems += [f"class {name} does not belong to {benchmark.name}" for name in unknown]
        problems += [f"class {name} is missing in every domain" for name in missing]
    elif benchmark.n_classes is not None and len(tree.classes) != benchmark.n_classes:
        problems.append(f"found {len(tree.classes)} classes, expected {benchmark.n_classes}")
    return problems


def count_problems(benchmark: Benchmark, counts: Mapping[str, int]) -> list[str]:
    """Return the domains whose number of images differs from the published one, one line each."""
    if sum(counts.values()) in benchmark.other_totals and set(counts) == set(benchmark.counts):
        return []
    return [
        f"domain {domain} has {counts.get(domain, 0)} images, expected {expected}"
        for domain, expected in benchmark.counts.items()
        if counts.get(domain, 0) != expected
    ]


def notes(tree: Tree) -> list[str]:
    """Return notes on ignored folders and files, on splits, and on classes that some domains lack, one line each."""
    lines = [f"ignored folder {name}, which is not one of the domains" for name in tree.odd("unknown folder")]
    lines += [f"ignored folder {name}, which holds runs" for name in tree.odd("folder of runs")]
    if others := tree.odd("other file"):
        lines.append(f"ignored {counted(len(others), 'file')} without an image extension, e.g. {others[0]}")
    if shallow := tree.odd("shallow image"):
        lines.append(f"ignored {counted(len(shallow), 'image')} outside of class folders, e.g. {shallow[0]}")
    if tree.is_split:
        lines.append(f"one domain, whose splits are its folders {', '.join(tree.files)}")
    elif "train" in tree.files and all(folder in SPLITS for folder in tree.files):
        others = [folder for folder in tree.files if folder != "train"]
        if others:
            lines.append(
                f"without a folder val, train and {' and '.join(others)} are domains, and validation images are drawn "
                "at random from each: if they are splits, add val"
            )
        else:
            lines.append("without a folder val, validation images are drawn at random from train")
    # Domains and classes without any image are problems, not notes.
    domains = [domain for domain in tree.files if tree.count(domain)]
    lacking = {name: [domain for domain in domains if not tree.files[domain].get(name)] for name in tree.classes}
    gaps = [
        f"class {name} has no images in {', '.join(without)}"
        for name, without in lacking.items()
        if 0 < len(without) < len(domains)
    ]
    if gaps:
        lines.append(f"{', '.join(_first_lines(gaps, 3))}; the labels of other classes do not change")
    return lines


def read_image_folder(benchmark: Benchmark, root: Path | None, check_counts: bool, options: Options) -> Dataset:
    """Read a dataset of image files; with ``check_counts`` the image counts must equal the published ones."""
    path = locate(benchmark, root)
    return read_tree(benchmark, path, scan(benchmark, path, options), check_counts)


def read_tree(benchmark: Benchmark, path: Path, tree: Tree, check_counts: bool) -> Dataset:
    """Return the dataset of a tree, which was listed from the folder or file `path`."""
    layout = layout_problems(benchmark, tree)
    found = {domain: tree.count(domain) for domain in tree.files}
    counts = count_problems(benchmark, found) if check_counts else []
    if layout or counts:
        advice = f"run `swad datasets check {path} --name {benchmark.name}`"
        if not layout:
            advice += ", or allow it with --allow-count-mismatch (check_counts=False)"
        raise DataError(f"{benchmark.name} at {path}: {'; '.join(_first_lines(layout + counts))}; {advice}")
    domains = (_split_domain(tree),) if tree.is_split else read_domains(tree)
    name = benchmark.name if benchmark.domains else data_name(path.resolve())
    return Dataset(name, domains, tree.classes, benchmark.image_spec, benchmark.defaults, tuple(notes(tree)))


def read_domains(tree: Tree) -> tuple[FileDomain, ...]:
    """Return the images of every folder of a tree as a domain."""
    return tuple(FileDomain(d, tree.domain_labels(d), tree.path, tuple(tree.domain_paths(d))) for d in tree.files)


def _are_splits(folders: Iterable[str]) -> bool:
    """Return whether folders are the splits of one domain: train, val, and perhaps test.

    >>> _are_splits(["train", "val"]), _are_splits(["train", "test", "valid"]), _are_splits(["train", "val", "sketch"])
    (True, True, False)
    """
    splits = sorted(SPLITS.get(folder, folder) for folder in folders)
    return splits in (["train", "val"], ["test", "train", "val"])


def _split_domain(tree: Tree) -> FileDomain:
    folders = sorted(tree.files, key=lambda name: ("train", "val", "test").index(SPLITS[name]))
    labels = np.concatenate([tree.domain_labels(folder) for folder in folders])
    paths = tuple(path for folder in folders for path in tree.domain_paths(folder))
    train, val, *test = (tree.count(folder) for folder in folders)
    return FileDomain(ONLY_DOMAIN, labels, tree.path, paths, (train, val, sum(test)))


def _untrained_classes(tree: Tree) -> list[tuple[str, str]]:
    trained = {name for name, files in tree.files["train"].items() if files}
    return [
        (name, folder)
        for folder, classes in tree.files.items()
        for name, files in sorted(classes.items())
        if files and name not in trained
    ]


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is the output of a training or a sweep, which has figures, but no classes of images."""
    for _, subfolders, files in os.walk(folder):
        if not {"run.lock", "records.jsonl", "sweep.json"}.isdisjoint(files):  # a copy of a run may lack its lock
            return True
        if any(map(is_image, files)):  # a domain: its other images need not be listed again
            return False
        subfolders[:] = [name for name in subfolders if name != "figures"]
    return False


def _has_no_domains(path: Path, names: list[str]) -> bool:
    """Whether images are at <class>/<image> and none is at <domain>/<class>/<image>."""
    in_classes = (image_files(path / name / inner) for name in names for inner in _folders(path / name))
    return not any(in_classes) and any(image_files(path / name) for name in names)


def _folder_of_classes(path: Path, folder: str) -> str:
    """Return the folder with the classes of a domain: its own, or the only one in it, ``images``, as in Office-31."""
    inner = path / folder / "images"
    only = folder != "." and _folders(path / folder) == ["images"] and not image_files(inner)
    return f"{folder}/images" if only and _folders(inner) else folder


def _join(folder: str, path: str) -> str:
    return path if folder == "." else f"{folder}/{path}"


def _wrong_level(tree: Tree) -> str:
    """Return which level of folders is missing or superfluous, if no image is at <domain>/<class>/<image>; else ""."""
    if any(tree.count(domain) for domain in tree.files):
        return ""
    if shallow := tree.odd("shallow image"):
        example = shallow[-1]
        return (
            f"images must be at <class>/<image> or <domain>/<class>/<image>, but {example} is in no folder of a class: "
            f"move it to <class>/{example}"
        )
    for nested in tree.odd("nested folder"):
        if images := image_files(tree.path / nested):
            return (
                f"images must be at <domain>/<class>/<image>, but {nested}/{images[0]} is one level deeper: give the "
                f"folder {tree.path / nested.split('/')[0]}, or remove a level of folders"
            )
    return ""


def _folders(path: Path) -> list[str]:
    return sorted(e.name for e in entries(path) if e.is_dir() and not e.name.startswith(".") and e.name != "__MACOSX")


def _encoding_problems(names: Iterable[str]) -> list[str]:
    """Find names that no text file can hold: their bytes are not UTF-8."""
    readable = [name.encode(errors="replace").decode() for name in names if not is_utf8(name)]
    return [f"the name of folder {name} is not UTF-8; rename it" for name in readable]


def _spelling_problems(names: tuple[str, ...]) -> list[str]:
    """Find names that look the same to a reader: they differ in case, or in composed and decomposed accents."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        spellings.setdefault(key, []).append(name)
    problems = []
    for same in spellings.values():
        if len(same) > 1:
            distinct = len({unicodedata.normalize("NFC", name) for name in same})
            what = "case" if distinct == len(same) else "how Unicode encodes their accents (NFC, NFD)"
            problems.append(f"classes {' and '.join(same)} differ only in {what}; use one name")
    return problems


def _first_lines(lines: list[str], most: int = 8) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more"]
