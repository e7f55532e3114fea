"""What a sweep compares: everything that a user may state, from Python, the command line or a TOML file.

>>> SweepSpec(algorithms=("erm", "coral"), protocol="paper").datasets
('PACS', 'VLCS', 'OfficeHome', 'TerraIncognita', 'DomainNet')
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from swad.testbed.algorithms import registry as algorithms
from swad.testbed.averages import registry as averages
from swad.testbed.training.config import SETTINGS, ConfigError, unknown_setting
from swad.testbed.training.setting import add_args, setting, settings_of
from swad.util.data_path import absolute
from swad.util.names import did_you_mean, name_problem

Protocol = Literal["defaults", "grid", "random", "paper", "domainbed"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)

DATASETS = {
    "paper": ("PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet"),
    "domainbed": ("ColoredMNIST", "RotatedMNIST", "VLCS", "PACS", "OfficeHome", "TerraIncognita", "DomainNet"),
}
"""The datasets of a protocol; the other protocols use the embedded digits by default."""

OWN_OPTIONS = {
    "dataset": "datasets",
    "target": "targets",
    "trial": "trials",
    "algorithm": "algorithms",
    "averages": "averages",
    "data_dir": "data",
}
"""Settings of a run that a sweep varies or sets by another name."""

INSTEAD = {
    "set": "write hyperparameters = { lr = 3e-5 }",
    "allow_count_mismatch": "write check_counts = false",
    "no_report_live": "write report_live = false",
    "strategy": "leave it out, as the processes of a run use DDP",
}
"""What a plan file says for the options of `swad train` that are not named after their setting, or are gone."""


@dataclass(frozen=True)
class SweepSpec:
    """What to compare: one run for each dataset, algorithm, target, trial and point of hyperparameters."""

    algorithms: tuple[str, ...] = setting(("erm",), help="Training algorithms, e.g. erm,coral+sam. Default: erm.")
    averages: tuple[str, ...] = setting(
        ("swad", "swa", "ema"), help="Weight averages. All come from the same trainings. Default: swad,swa,ema."
    )
    datasets: tuple[str, ...] = setting((), help="Datasets. Default: those of the protocol, else digits.")
    data: Path | None = setting(None, help="Directory that contains the datasets.")
    targets: tuple[str, ...] = setting(
        (), help="Domains to hold out; none trains on all domains. Default: each domain in turn."
    )
    trials: tuple[int, ...] = setting((0, 1, 2), help="Train-validation splits. Default: 0,1,2.")
    protocol: Protocol = setting(
        "defaults",
        help="Search of hyperparameters: defaults (none), grid, random, paper (grid of 18 on trial 0, the best "
        "repeated in the other trials) or domainbed (20 random draws in each trial). Default: defaults, or grid if "
        "there is a --grid.",
    )
    grid: Mapping[str, tuple[Any, ...]] = setting(
        factory=dict, help="Values of hyperparameters, e.g. lr=1e-5,3e-5,dropout=0,0.5."
    )
    draws: int = setting(20, help="Random draws of domainbed and random. Default: 20.")
    seeding: Literal["2020", "present"] = setting(
        "present", help="The version of DomainBed whose draws are repeated. Default: present."
    )
    select: str | None = setting(
        None,
        help="Model selection of the table: iid, last, lodo, oracle or oracle_best_step. lodo adds the runs with "
        "two targets that it needs; domainbed has them without --select too. Default: iid.",
    )
    choose_by: str = setting(
        "best",
        help="Weights whose validation score on the sources chooses the hyperparameters in the protocol paper: best, "
        "last or an average. Default: best.",
    )
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of `RunConfig` by name, such as steps; `hyperparameters` holds values common to all runs."""
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Domains of datasets without a fixed list of them, by dataset; filled in by `with_domains`."""
    selected: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hyperparameters that were selected before, which take the place of a search: settings of the run by
    `selected_name`, as `swad.testbed.sweep.selected_settings.read_selected` returns them."""

    def __post_init__(self) -> None:
        # JSON, TOML and command lines give lists and strings; the code below sees one form.
        for name in ("algorithms", "averages", "datasets", "targets", "trials"):
            object.__setattr__(self, name, _tuple(getattr(self, name)))
        for name in ("grid", "domains"):
            values = {key: _tuple(value) for key, value in dict(getattr(self, name)).items()}
            object.__setattr__(self, name, values)
        for name in ("options", "selected"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        # Absolute, so that a worker finds the file from wherever it is started.
        paths = (os.path.abspath(name) if ".py:" in name else name for name in self.algorithms)
        object.__setattr__(self, "algorithms", tuple(paths))
        object.__setattr__(self, "data", None if self.data is None else absolute(self.data))
        if not self.datasets:
            object.__setattr__(self, "datasets", DATASETS.get(self.protocol, ("digits",)))

    @property
    def selector(self) -> str:
        """The selection that is reported."""
        return self.select or "iid"

    @property
    def plans_pairs(self) -> bool:
        """Whether runs with two targets are planned."""
        return self.select == "lodo" or (self.select is None and self.protocol == "domainbed")

    @property
    def searches_first_trial(self) -> bool:
        """Whether hyperparameters are chosen on the first trial and used for the others."""
        return self.protocol == "paper" and len(self.trials) > 1

    def with_domains(self) -> SweepSpec:
        """Return the spec with the domains of datasets whose domains are known from their directory alone."""
        from swad.testbed.data import benchmarks

        unknown = [name for name in self.datasets if not benchmarks.get(name).domains and name not in self.domains]
        if not unknown:
            return self
        options = self.options.get("dataset_options", {})
        found = {name: benchmarks.load(name, self.data, **options).domain_names for name in unknown}
        return dataclasses.replace(self, domains={**self.domains, **found})

    def domain_names(self, dataset: str) -> tuple[str, ...]:
        """Return the domains of a dataset; empty if they are not known without its directory."""
        from swad.testbed.data import benchmarks

        return benchmarks.get(dataset).domains or self.domains.get(dataset, ())

    # -- files ----------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain values."""
        plain: dict[str, Any] = json.loads(json.dumps(vars(self), default=str))
        return plain

    @classmethod
    def from_json(cls, content: Mapping[str, Any], source: Path | str) -> SweepSpec:
        """Read a spec from plain values; `source` is named where they are invalid."""
        problems = key_problems(content) or setting_problems(content.get("options", {}))
        if not problems:
            return cls(**content)
        raise ConfigError([f"{source}: {problem}" for problem in problems])


def key_problems(content: Mapping[str, Any], fields: Mapping[str, str] | None = None) -> list[str]:
    """List the names that a spec does not have and the values of the wrong type, one sentence each.

    Args:
        content: Values by name.
        fields: The field of each name. None: names are fields.
    """
    fields = fields or dict(zip(FIELDS, FIELDS, strict=True))
    problems = []
    for name, value in content.items():
        if name not in fields:
            hint = did_you_mean(name, fields) or f"there are {', '.join(fields)}"
            if name in SETTINGS and name not in OWN_OPTIONS:
                hint = "a setting of the runs belongs under [options]"
            problems.append(f"there is no key {name!r}: {hint}")
        elif rule := _type_problem(fields[name], value):
            problems.append(f"{name} must be {rule}, got {value!r}")
        elif isinstance(value, str) and len(names := _listed_names(fields[name], value)) > 1:
            problems.append(f"{name} must be a list of names, got {value!r}: write {name} = {json.dumps(names)}")
        else:
            problems += _folder_problems(fields[name], name, value)
    return problems


def setting_problems(options: Iterable[str]) -> list[str]:
    """List the names that cannot be further settings of all runs, one sentence each."""
    problems = []
    for name in options:
        if name in OWN_OPTIONS or name == "output":
            instead = OWN_OPTIONS.get(name, "directory")
            problems.append(f"{name} cannot be an option of all runs: state the {instead} of the sweep")
        elif name not in SETTINGS:
            names = [setting for setting in SETTINGS if setting not in OWN_OPTIONS]
            problems.append(unknown_setting(name, names, INSTEAD.get(name, "")))
    return problems


def _folder_problems(field: str, name: str, value: Any) -> list[str]:
    """Say which targets and domains cannot name the directories of their runs, which are made inside of the sweep."""
    held_out: Iterable[Any] = ()
    if field == "targets":
        held_out = (value,) if isinstance(value, str) else value
    elif field == "domains":
        held_out = itertools.chain.from_iterable(value.values())
    return list(filter(None, (name_problem(f"a name in {name}", target) for target in held_out)))


def _type_problem(name: str, value: Any) -> str:
    """Return the rule that a value violates; "" if it violates none."""
    if name in ("algorithms", "averages", "datasets", "targets"):
        valid = isinstance(value, str) or (_is_list(value) and all(isinstance(item, str) for item in value))
        return "" if valid else "a list of names"
    if name == "trials":
        valid = _is_list(value) and all(type(item) is int for item in value)
        return "" if valid else "a list of whole numbers"
    if name in ("grid", "options", "domains", "selected"):
        if not isinstance(value, Mapping):
            return "a table of values by name"
        if name == "selected" and not all(isinstance(item, Mapping) for item in value.values()):
            return "tables of settings by name"
        if name in ("grid", "domains") and not all(_is_list(item) for item in value.values()):
            return "lists of values by name"
        nested = name == "grid" and any(isinstance(item, list | dict) for items in value.values() for item in items)
        return "lists of numbers by name" if nested else ""
    if name == "draws":
        return "" if type(value) is int else "a whole number"
    optional = name in ("select", "data")
    valid = isinstance(value, str | os.PathLike) or (optional and value is None)
    return "" if valid else "a text"


def _listed_names(name: str, text: str) -> list[str]:
    """Return the names in a text, as if it were a value on the command line. The name of a domain may have commas."""
    if name == "averages":
        return list(averages.split(text))
    return [part.strip() for part in text.split(",")] if name in ("algorithms", "datasets") else [text]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _tuple(value: Any) -> tuple[Any, ...]:
    """Return the values without repetitions; a single text is one value."""
    values: Iterable[Any] = (value,) if isinstance(value, str) else value
    return tuple(dict.fromkeys(values))


def canonical_algorithms(spec: SweepSpec) -> tuple[str, ...]:
    """Return the algorithms of a valid spec as their files spell them."""
    return tuple(dict.fromkeys(algorithms.canonical_name(name) for name in spec.algorithms))


def selected_name(dataset: str, algorithm: str, target: str, trial: int) -> str:
    """Return the name of a run's settings in `SweepSpec.selected`."""
    return f"{dataset}/{algorithm}/{target}/{trial}"


SPEC_SETTINGS = settings_of(SweepSpec)
"""The fields that are options of `swad sweep run`, by name."""

add_args(SweepSpec, [known.doc for known in SPEC_SETTINGS.values()])

FIELDS = tuple(field.name for field in dataclasses.fields(SweepSpec))
"""The names of a spec."""

KEYS = {
    name.removesuffix("s") if name in ("algorithms", "datasets", "targets", "trials") else name: name for name in FIELDS
}
"""The field of every key of a plan file. Keys are the options of the command line, named as in `swad train`."""
