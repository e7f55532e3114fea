"""Averages by name, as in `--averages swad,swa,ema`, with options after a colon.

    swad                                        SWAD by the paper's Algorithm 1
    swad:semantics=text,tolerance_ratio=0.2     with options of its rule, or of every average (buffers, offload)
    swad:as=strict,tolerance_ratio=0.1          with a label of its own, next to a plain swad
    mine:k=5                                    an average of your own (`swad.testbed.averages.own`)

An average is a rule (`swad.Rule`), and its options are the parameters of that rule.

Windows depend on the length of training: SWA takes the weights at every evaluation of the last 20 %. With 5,000 updates
and evaluations every 100, these are the paper's 4100, 4200, ..., 5000.

Most ablations of the paper's Table 5 are averages of one trajectory. With 5,000 updates and evaluations every 100:

============================ ======================= ============= ============= ========
row                          name                    from          to            interval
============================ ======================= ============= ============= ========
SWA with constant lr         `swa`                   4000          5000          100
SWAD without dense           `without_dense`         valley start  valley end    100
SWAD without opt-overfit     `without_opt_overfit`   4000          5000          1
SWAD without overfit         `without_overfit`       valley start  5000          1
SWAD                         `swad`                  valley start  valley end    1
============================ ======================= ============= ============= ========

SWA with a cyclic learning rate is `swa` in a training with the lr_schedule `cyclic`. SWAD fit-on-val chooses the window
with the best validation accuracy among stored segments, after training (`swad measure windows`).

>>> split("swad:semantics=text,n_converge=2,ema")
('swad:semantics=text,n_converge=2', 'ema')
>>> parse("swad:as=strict,tolerance_ratio=0.1")
Spec(name='swad', label='strict', options={'tolerance_ratio': 0.1})
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from swad.averaging.decay import Decay
from swad.averaging.latest import Decayed, Latest
from swad.averaging.rule import Rule
from swad.averaging.valley import LossValley
from swad.averaging.window import Window
from swad.testbed.averages.own import FILES
from swad.testbed.averages.own import AverageError as AverageError
from swad.util.names import did_you_mean
from swad.util.options import parse as parse_value
from swad.util.options import text_options

if TYPE_CHECKING:
    from torch import nn

    from swad.averaging.average import Average

RESERVED = frozenset({"best", "last"})
"""Labels of the live weights of a run."""


@dataclass(frozen=True)
class Plan:
    """The schedule of a training, on which the defaults of averages depend.

    Args:
        steps: Updates in the training.
        evaluate_every: Updates between two evaluations.
        tolerance_ratio: The dataset's default for SWAD.
        offset: 1 where evaluations come one update late, as in the published code.
        cycle: Updates in a cycle of the learning rate, if it is cyclic.
        start: The last update before the windows, if it is not derived from the others.
    """

    steps: int
    evaluate_every: int
    tolerance_ratio: float = 0.3
    offset: int = 0
    cycle: int | None = None
    start: int | None = None

    @property
    def last(self) -> int:
        """The last update."""
        return self.offset + self.steps

    @property
    def late(self) -> int:
        """The last update before the last 20 % of training, a whole number of intervals before the end."""
        if self.start is not None:
            return self.start
        every = self.interval
        return self.last - min(self.steps, max(1, round(self.steps / 5 / every)) * every)

    @property
    def interval(self) -> int:
        """Updates between two weights of SWA: one evaluation to the next, or one cycle of the learning rate."""
        return min(self.cycle or self.evaluate_every, self.steps)


@dataclass(frozen=True)
class Spec:
    """One requested average: its registered name, its label in results, and its options."""

    name: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)


Options = dict[str, Any]

COMMON: dict[str, type] = {"buffers": str, "offload": bool}
"""Options of every average."""


class _Entry(NamedTuple):
    """An average by name: what is averaged, its rule, defaults that depend on the training, and settings that stay."""

    summary: str
    rule: Callable[..., Rule]
    defaults: Callable[[Plan], Options] = lambda plan: {}
    fixed: Options = {}  # noqa: RUF012 - never changed

    @property
    def options(self) -> dict[str, type]:
        """The options that a user may set, each with its type."""
        return {name: kind for name, kind in text_options(self.rule).items() if name not in self.fixed} | COMMON


def _valley(plan: Plan) -> Options:
    return {"tolerance_ratio": plan.tolerance_ratio}


def _late(interval: Callable[[Plan], int]) -> Callable[[Plan], Options]:
    return lambda plan: {"start": plan.late, "end": plan.last, "interval": interval(plan)}


_LOSSES: Options = {"mode": "min"}  # what a training of the testbed observes

_ENTRIES = {
    "swad": _Entry("from the lowest validation loss to the start of overfitting", LossValley, _valley, _LOSSES),
    "swad_text": _Entry(
        "SWAD by the text of the paper's section 3.2", LossValley, _valley, {**_LOSSES, "semantics": "text"}
    ),
    "swad_reference": _Entry(
        "SWAD as the published code computes it", LossValley, _valley, {**_LOSSES, "semantics": "reference"}
    ),
    "swa": _Entry("the weights at the evaluations of the last 20 %", Window, _late(lambda plan: plan.interval)),
    "sma": _Entry(
        "every update after the first 100", Window, lambda plan: {"start": 100}, {"end": None, "interval": 1}
    ),
    "ema": _Entry("exponential moving average, decay 0.99", Decay),
    "lawa": _Entry("the weights at the last 5 evaluations", Latest),
    "wsm": _Entry("the last 5 evaluations, weighted as if the learning rate had decayed", Decayed),
    "without_dense": _Entry(
        "SWAD on the weights at evaluations only",
        LossValley,
        lambda plan: {**_valley(plan), "interval": plan.evaluate_every},
        _LOSSES,
    ),
    "without_overfit": _Entry("SWAD to the end of training", LossValley, _valley, {**_LOSSES, "n_tolerance": math.inf}),
    "without_opt_overfit": _Entry("every update of the last 20 %", Window, _late(lambda plan: 1)),
}


def names() -> tuple[str, ...]:
    """Return the names of all averages, your own last."""
    mine = FILES.names()
    if taken := [name for name in mine if name in _ENTRIES or name in RESERVED]:
        raise AverageError(f"average names must be unique, but {taken[0]!r} exists already: rename {taken[0]}.py")
    return (*_ENTRIES, *mine)


def _entry(name: str) -> _Entry:
    """Return how to build an average, or raise if there is none of this name."""
    known = names()
    if name in _ENTRIES:
        return _ENTRIES[name]
    if name not in known:
        hint = did_you_mean(name, known) or "name the folder of your own averages in SWAD_AVERAGES"
        raise AverageError(f"there is no average {name!r}, only {', '.join(known)}: {hint}")
    return _own_entry(name, FILES.get(name))


def _own_entry(name: str, cls: type[Rule]) -> _Entry:
    """Describe an average of a user; a parameter `plan` of its rule gets the length of the training."""

    @functools.wraps(cls, updated=())  # with its signature
    def rule(**options: Any) -> Rule:
        try:
            return cls(**options)
        except ValueError:
            raise
        except Exception as error:  # the class may do anything
            raise ValueError(f"{cls.__name__} of {name}.py raises {type(error).__name__}: {error}") from error

    gets_plan = "plan" in inspect.signature(cls).parameters
    summary = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    return _Entry(summary, rule, lambda plan: {"plan": plan} if gets_plan else {})


def summary(name: str) -> str:
    """Return in one line what an average averages.

    >>> summary("swa")
    'the weights at the evaluations of the last 20 %'
    """
    return _entry(name).summary


def options(name: str) -> tuple[str, ...]:
    """Return the options of an average besides those that every average has.

    >>> options("ema")
    ('decay', 'warmup')
    """
    return tuple(option for option in _entry(name).options if option not in COMMON)


def split(text: str) -> tuple[str, ...]:
    """Split a comma-separated list; a part with `=` but no colon is another option of the average before it."""
    parts: list[str] = []
    for part in filter(None, (item.strip() for item in text.split(","))):
        if "=" in part and ":" not in part and parts and ":" in parts[-1]:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return tuple(parts)


def parse(text: str) -> Spec:
    """Parse one average."""
    name, _, rest = text.partition(":")
    allowed = _entry(name).options
    label, options = name, {}
    for item in filter(None, rest.split(",")):
        option, equals, value = item.partition("=")
        if option == "as" and value:
            label = value
        elif equals and option in allowed:
            try:
                options[option] = parse_value(value, allowed[option])
            except ValueError as rule:
                raise AverageError(f"{name}: {option} must be {rule}, got {value!r}") from None
        else:
            raise AverageError(
                f"{name} takes {', '.join([*allowed, 'as'])}, as name=value after the colon; got {item!r}"
            )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", label) or label in RESERVED:
        raise AverageError(
            f"a label may have letters, digits, '_', '.' and '-', and must not be {' or '.join(sorted(RESERVED))}; "
            f"got {label!r}"
        )
    return Spec(name, label, options)


def parse_all(texts: Iterable[str]) -> tuple[Spec, ...]:
    """Parse several averages, whose labels must differ."""
    specs = tuple(parse(text) for text in texts)
    labels = [spec.label for spec in specs]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise AverageError(f"two averages are called {', '.join(repeated)}: give one another name with as=NAME")
    return specs


def make_rule(spec: Spec, plan: Plan) -> Rule:
    """Build the rule of an average: which updates it averages."""
    entry = _entry(spec.name)
    own = {name: value for name, value in spec.options.items() if name not in COMMON}
    rule = entry.rule(**entry.defaults(plan) | entry.fixed | own)
    start = min((span.first for span in rule.needed()), default=1) - 1
    if start >= plan.last:
        raise ValueError(
            f"the average starts after update {start}, but this run ends at update {plan.last}: "
            f"train longer, or start earlier with {spec.name}:start={plan.last // 50}"
        )
    return rule


def make(specs: Iterable[Spec], model: nn.Module, plan: Plan) -> dict[str, Average]:
    """Build the averages for a model, by label."""
    from swad.averaging.average import Average

    averages = {}
    for spec in specs:
        common = {name: value for name, value in spec.options.items() if name in COMMON}
        try:
            averages[spec.label] = Average(model, make_rule(spec, plan), **common)
        except ValueError as error:
            raise AverageError(f"average {spec.label}: {error}") from None
    return averages


def problems(texts: Iterable[str], plan: Plan | None) -> list[str]:
    """Return what is wrong with the requested averages, one sentence each. Each is built once on a tiny model."""
    from torch import nn

    errors = []
    for text in texts:
        try:
            spec = parse(text)
            if plan is not None:
                make([spec], nn.LayerNorm(1), plan)  # a LayerNorm draws no random numbers
        except AverageError as error:
            errors.append(str(error))
    if not errors:
        try:
            parse_all(texts)
        except AverageError as error:
            errors.append(str(error))
    return list(dict.fromkeys(errors))
