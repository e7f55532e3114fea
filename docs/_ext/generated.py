"""Parts of pages that are written from the code when the site is built.

A line `<!-- generated: NAME -->` in a page is replaced by what the function of that name returns, as Markdown. Nothing
generated is committed.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

MARK = re.compile(r"^<!-- generated: (\S+) -->$", re.MULTILINE)

PARTS: dict[str, Callable[[], str]] = {}


def part(function: Callable[[], str]) -> Callable[[], str]:
    """Offer a function under its name to pages."""
    PARTS[function.__name__] = function
    return function


def expand(text: str) -> str:
    """Replace the marks of a page by the parts that they name.

    >>> expand("no mark")
    'no mark'
    """

    def write(mark: re.Match[str]) -> str:
        if mark[1] not in PARTS:
            raise ValueError(f"a generated part must be one of {', '.join(PARTS)}, got {mark[1]!r}")
        return PARTS[mark[1]]()

    return MARK.sub(write, text)


# ------------------------------------------------------------ modules


@part
def modules() -> str:
    """Every public module with the first line of its docstring, and their table of contents."""
    from public_names import public_modules

    names = list(public_modules())
    docs = {name: inspect.getdoc(importlib.import_module(name)) or "" for name in names}
    rows = [(f"[`{name}`](api/{name}.rst)", _prose(_summary(text))) for name, text in docs.items()]
    entries = "\n".join(f"{name.removeprefix('swad.')} <api/{name}>" for name in names)
    return _table(("module", "what it offers"), rows) + f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


# ------------------------------------------------------------ commands


ROLES = {
    "identity": "names the run",
    "hyperparameter": "varied by a search; selection chooses among its values",
    "protocol": "must agree for runs to be compared; the report warns where it does not",
    "machine": "how and where the run is computed; never distinguishes two runs",
    "output": "which results are kept besides the averages; never distinguishes two runs",
}


@part
def commands() -> str:
    """Every command with its arguments, options and examples, and the settings of `swad train` with their fields."""
    return "\n".join(line for path, command in _walk("swad", _root()) for line in _command(path, command))


@part
def roles() -> str:
    """The meanings of the roles of settings."""
    return _table(("role", "meaning"), ROLES.items())


def _root() -> Any:
    import typer

    from swad import cli

    return typer.main.get_command(cli.app)


def _walk(path: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield f"{path} {name}", command
        yield from _walk(f"{path} {name}", command) if hasattr(command, "commands") else ()


def _command(path: str, command: Any) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    params = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in params if param.param_type_name == "argument"]
    options = [param for param in params if param.param_type_name == "option"]
    subcommands = getattr(command, "commands", {})
    usage = [path, *map(_metavar, arguments), *["[OPTIONS]"] * bool(options), *["COMMAND"] * bool(subcommands)]
    yield f"{'#' * (1 + path.count(' '))} {path}\n"
    yield from _fenced("program", path)
    yield f"{_prose(inspect.cleandoc(command.help or ''))}\n"
    yield from _fenced("console", None, f"$ {' '.join(usage)}")
    if subcommands:
        links = (f"[{path} {name}](#{_slug(f'{path} {name}')})" for name in subcommands)
        yield f"Commands: {', '.join(links)}.\n"
    for argument in arguments:
        yield from _fenced("describe", _metavar(argument), _help(argument, context))
    panels = dict.fromkeys(getattr(option, "rich_help_panel", None) for option in options)
    for panel in panels:
        if panel and len(panels) > 1:
            yield f"**{panel}**\n"
        for option in options:
            if getattr(option, "rich_help_panel", None) == panel:
                flags = option.get_help_record(context)[0].replace(" / ", ", ")
                text = _help(option, context) + (_field(option.name) if path == "swad train" else "")
                yield from _fenced("option", flags, text)
    general, examples = _epilog(command.epilog or "")
    if general:
        yield f"{_prose(general)}\n"
    if examples:
        yield from _fenced("console", None, "\n".join(f"$ {example}" for example in examples))


def _metavar(argument: Any) -> str:
    shown = argument.metavar or (argument.name or "").upper()
    shown += "..." * (argument.nargs == -1)
    return shown if argument.required else f"[{shown}]"


def _help(param: Any, context: Any) -> str:
    """Return the help text as `--help` shows it, and its remark in brackets as a sentence."""
    text, _, remark = param.get_help_record(context)[1].partition("  [")
    name, _, value = remark.removesuffix("]").partition(": ")
    return _prose(text) + (f" {name.capitalize()}: `{value}`." if value else "")


def _field(option: str) -> str:
    """Return the field of `RunConfig` that an option of `swad train` sets, and its role."""
    from swad.testbed.training.config import SETTINGS

    if (setting := SETTINGS.get(option)) is None:
        return ""
    field = f"{setting.name}=False" if setting.default is True else setting.name
    resume = ", may change on resume" if setting.free_on_resume else ""
    return f"\n\nField `{field}`: {setting.role}{resume}."


def _epilog(text: str) -> tuple[str, list[str]]:
    """Split the text below the help into the general lines and the examples."""
    general, _, examples = re.sub(r"\\\[", "[", text).partition("Example")
    return general.strip(), re.findall(r"^(?:s?: *)?(swad .+)$", examples, re.MULTILINE)


# ------------------------------------------------------------ methods, datasets, averages, corruptions


@part
def methods() -> str:
    """Every method: what its docstring says, credit, needs and hyperparameters."""
    from swad.testbed.algorithms import registry

    found = {name: registry.get_algorithm(name) for name in registry.list_algorithms()}
    rows = [
        (f"[{name}](#{_slug(name)})", _summary(_module_doc(cls)), ", ".join(cls.all_needs()))
        for name, cls in found.items()
    ]
    lines = [_table(("name", "method", "needs"), rows)]
    for name, cls in found.items():
        lines += [f"### {name}\n", _module_doc(cls), ""]
        lines += [f"Credit: {_prose(cls.paper)}\n"] if cls.paper else []
        lines += [f"With `--recipe own`: {_prose(str(cls.own_recipe))}\n"] if cls.own_recipe is not None else []
        lines.append(_hyperparameters(cls.Hyperparameters))
    return "\n".join(lines)


@part
def hyperparameters() -> str:
    """The hyperparameters that every method has."""
    from swad.testbed.algorithms.hyperparameters import Hyperparameters

    return _hyperparameters(Hyperparameters, all_fields=True)


def _hyperparameters(cls: type, all_fields: bool = False) -> str:
    from swad.testbed.algorithms.hyperparameters import Hyperparameters, as_text

    common = {} if all_fields else {field.name: field for field in dataclasses.fields(Hyperparameters)}
    rows = []
    for field in dataclasses.fields(cls):
        known = common.get(field.name)
        if known is not None and (known.default, known.metadata) == (field.default, field.metadata):
            continue
        own = "".join(f"; {dataset}: {its_range}" for dataset, its_range in field.metadata["by_dataset"].items())
        search, low_res = field.metadata["range"], field.metadata["low_res"]
        if low_res != search:
            own += f"; low-resolution images: {low_res}"
        rows.append((f"`{field.name}`", as_text(field.default), f"{search}{own}", _prose(field.metadata["help"])))
    return _table(("hyperparameter", "default", "search range", "meaning"), rows) if rows else ""


def _module_doc(cls: type) -> str:
    return inspect.cleandoc(inspect.getmodule(cls).__doc__ or "")


@part
def datasets() -> str:
    """Every dataset with its counts, domains, training defaults and license."""
    from swad.testbed.data import benchmarks

    rows = []
    for benchmark in map(benchmarks.get, benchmarks.names()):
        name = f"[{benchmark.name}]({benchmark.homepage})" if benchmark.homepage else benchmark.name
        defaults = benchmark.defaults
        counts = (f"{benchmark.total:,}" if benchmark.total else "", str(benchmark.n_classes or ""))
        domains = _prose(", ".join(benchmark.domains)) or "your directories"
        rows.append((name, *counts, domains, f"{defaults.steps:,}", _prose(benchmark.license)))
    return _table(("dataset", "images", "classes", "domains", "steps", "license"), rows, right=(1, 2, 4))


@part
def averages() -> str:
    """Every average that `--averages` takes, with the options of its rule."""
    from swad.testbed.averages import registry

    rows = [
        (f"`{name}`", _prose(registry.summary(name)), ", ".join(f"`{option}`" for option in registry.options(name)))
        for name in registry.names()
    ]
    return _table(("name", "what is averaged", "options"), rows)


@part
def corruptions() -> str:
    """Every corruption of images."""
    from swad.robustness.corruptions import CORRUPTIONS

    rows = [(f"`{name}`", _summary(inspect.getdoc(item.apply) or "")) for name, item in CORRUPTIONS.items()]
    return _table(("corruption", "what it does"), rows)


# ------------------------------------------------------------ citation


@part
def citation() -> str:
    """The software as a BibTeX entry, from `CITATION.cff`."""
    import yaml

    software = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8"))
    fields = {
        "title": f"{{{software['title']}}}",
        "author": " and ".join(_author(author) for author in software["authors"]),
        "version": str(software["version"]),
        "url": software.get("repository-code"),
        "doi": software.get("doi"),
        "year": str(software["date-released"])[:4] if "date-released" in software else None,
    }
    lines = [f"  {name:<7} = {{{value}}}" for name, value in fields.items() if value]
    return "```bibtex\n@software{swad,\n" + ",\n".join(lines) + "\n}\n```\n"


def _author(author: dict[str, str]) -> str:
    """Return a person as BibTeX sorts them, and a group in braces, which keep its name in one piece.

    >>> _author({"given-names": "Ada", "family-names": "Lovelace"}), _author({"name": "The authors"})
    ('Lovelace, Ada', '{The authors}')
    """
    return f"{{{author['name']}}}" if "name" in author else f"{author['family-names']}, {author['given-names']}"


# ------------------------------------------------------------ Markdown


def _table(header: Iterable[str], rows: Iterable[Iterable[str]], right: tuple[int, ...] = ()) -> str:
    header = list(header)
    rule = ("--:" if k in right else ":--" for k in range(len(header)))
    lines = [header, rule, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _fenced(directive: str, argument: str | None, text: str = "") -> Iterator[str]:
    yield f"```{directive}" if argument is None else f"```{{{directive}}} {argument}"
    yield from ([""] if argument is not None else [])
    yield from ([text] if text else [])
    yield "```\n"


def _prose(text: str) -> str:
    r"""Escape what Markdown would read as markup, outside code.

    >>> _prose("a*b <c> `d*e`")
    'a\\*b \\<c\\> `d*e`'
    """
    pieces = re.split(r"(`[^`]*`)", text.replace(r"\[", "["))
    return "".join(piece if piece.startswith("`") else re.sub(r"([*_<>\[\]])", r"\\\1", piece) for piece in pieces)


def _summary(docstring: str) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(docstring.partition("\n\n")[0].split())


def _slug(name: str) -> str:
    return re.sub(r"[^\w-]", "", name.lower().replace(" ", "-"))
