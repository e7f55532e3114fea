"""Averages by name, as `--average swad,swa,ema` gives them, with options after a colon.

    swad                                        SWAD as the paper's Algorithm 1 has it
    swad:semantics=text,tolerance_ratio=0.2     with options of its class
    swad:as=strict,tolerance_ratio=0.1          under a name of its own, beside a plain swad

Windows follow the length of training: SWA takes the weights at every evaluation of the last 20 %, which for 5,000
updates and evaluations every 100 are the paper's 4100, 4200, ..., 5000.

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

SWA with a cyclic learning rate is `swa` in a training with `swad.cyclic_lr`. SWAD fit-on-val chooses the window with
the best validation accuracy among stored segments: `swad.fit_on_val`.

>>> split("swad:semantics=text,n_converge=2,ema")
('swad:semantics=text,n_converge=2', 'ema')
>>> parse("swad:as=strict,tolerance_ratio=0.1")
Spec(kind='swad', label='strict', options={'tolerance_ratio': 0.1})
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from swad.averaging.base import Average

RESERVED = frozenset({"best", "last"})
"""Labels that a run gives to the live weights."""


class AverageError(ValueError):
    """An average that cannot be made; the message is one line that says what to do."""


@dataclass(frozen=True)
class Plan:
    """What an average's defaults depend on: the length of training, and when it is evaluated.

    `offset` is 1 where evaluations come one update late (the published schedule), `cycle` that of a cyclic
    learning rate.
    """

    steps: int
    evaluate_every: int
    tolerance_ratio: float = 0.3
    offset: int = 0
    cycle: int | None = None

    @property
    def late(self) -> int:
        """The update before the last 20 % of training, a whole number of intervals before the end."""
        every = self.interval
        return self.offset + self.steps - min(self.steps, max(1, round(self.steps / 5 / every)) * every)

    @property
    def interval(self) -> int:
        """Updates between two weights of SWA: from evaluation to evaluation, or the cycle of the learning rate."""
        return min(self.cycle or self.evaluate_every, self.steps)


@dataclass(frozen=True)
class Spec:
    """One average as asked for."""

    kind: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)


Options = dict[str, Any]
_Make = Callable[["nn.Module", Plan, Options], "Average"]


def _swad(fixed: Options) -> _Make:
    def make(model: nn.Module, plan: Plan, options: Options) -> Average:
        from swad.averaging.swad import SWAD

        return SWAD(model, **{"tolerance_ratio": plan.tolerance_ratio, **fixed, **options})

    return make


def _without_dense(model: nn.Module, plan: Plan, options: Options) -> Average:
    from swad.averaging.swad import SWAD

    defaults = {"tolerance_ratio": plan.tolerance_ratio, "interval": plan.evaluate_every}
    return SWAD(model, **{**defaults, **options})


def _without_overfit(model: nn.Module, plan: Plan, options: Options) -> Average:
    from swad.averaging.swad import SWAD

    return SWAD(model, **{"tolerance_ratio": plan.tolerance_ratio, "n_tolerance": math.inf, **options})


def _window(interval: Callable[[Plan], int]) -> _Make:
    def make(model: nn.Module, plan: Plan, options: Options) -> Average:
        from swad.averaging.swa import SWA

        defaults = {"start": plan.late, "end": plan.offset + plan.steps, "interval": interval(plan)}
        return SWA(model, **{**defaults, **options})

    return make


def _sma(model: nn.Module, plan: Plan, options: Options) -> Average:
    from swad.averaging.swa import SMA

    average = SMA(model, **options)
    last = plan.offset + plan.steps
    if average.start >= last:
        raise ValueError(
            f"the average begins after update {average.start}, and this run ends at update {last}: "
            f"train longer, or begin earlier with sma:start={last // 50}"
        )
    return average


def _ema(model: nn.Module, plan: Plan, options: Options) -> Average:
    from swad.averaging.ema import EMA

    return EMA(model, **options)


_VALLEY = {
    "n_converge": int,
    "n_tolerance": float,
    "tolerance_ratio": float,
    "nonfinite": str,
    "offload": bool,
    "buffers": str,
}
_WINDOW = {"start": int, "end": int, "interval": int, "offload": bool, "buffers": str}


@dataclass(frozen=True)
class _Kind:
    about: str
    make: _Make
    options: Mapping[str, type]


_KINDS = {
    "swad": _Kind("from the floor of the valley to the start of overfitting", _swad({}), {**_VALLEY, "semantics": str}),
    "swad_text": _Kind("the same by the wording of the paper's section 3.2", _swad({"semantics": "text"}), _VALLEY),
    "swad_reference": _Kind("the same as the published code does it", _swad({"semantics": "reference"}), _VALLEY),
    "swa": _Kind("the weights at the evaluations of the last 20 %", _window(lambda plan: plan.interval), _WINDOW),
    "sma": _Kind("every update after the first 100", _sma, {"start": int, "offload": bool, "buffers": str}),
    "ema": _Kind("exponential moving average, decay 0.99", _ema, {"decay": float, "buffers": str}),
    "without_dense": _Kind(
        "SWAD on the weights at evaluations only", _without_dense, {**_VALLEY, "interval": int, "semantics": str}
    ),
    "without_overfit": _Kind(
        "SWAD to the end of training",
        _without_overfit,
        {name: kind for name, kind in {**_VALLEY, "semantics": str}.items() if name != "n_tolerance"},
    ),
    "without_opt_overfit": _Kind("every update of the last 20 %", _window(lambda plan: 1), _WINDOW),
}


def names() -> tuple[str, ...]:
    """The averages there are."""
    return tuple(_KINDS)


def describe() -> dict[str, str]:
    """What each average is, by name."""
    return {name: kind.about for name, kind in _KINDS.items()}


def split(text: str) -> tuple[str, ...]:
    """Take a comma-separated list apart; a part with `=` and no colon goes on with the options before it."""
    parts: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if "=" in part and ":" not in part and parts and ":" in parts[-1]:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return tuple(parts)


def parse(text: str) -> Spec:
    """Read one average."""
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise AverageError(f"there is no average {kind!r}; there are {', '.join(_KINDS)}")
    label, options = kind, {}
    for item in filter(None, rest.split(",")):
        name, equals, value = item.partition("=")
        if name == "as" and value:
            label = value
        elif equals and name in _KINDS[kind].options:
            options[name] = _value(kind, name, value, _KINDS[kind].options[name])
        else:
            takes = ", ".join([*_KINDS[kind].options, "as"])
            raise AverageError(f"{kind} takes {takes}, as name=value after the colon; got {item!r}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", label) or label in RESERVED:
        raise AverageError(
            f"an average's name has letters, digits, '_', '.' and '-' and is not one of {', '.join(sorted(RESERVED))}; "
            f"got {label!r}"
        )
    return Spec(kind, label, options)


def parse_all(texts: Iterable[str]) -> tuple[Spec, ...]:
    """Read several averages, whose names must differ."""
    specs = tuple(parse(text) for text in texts)
    labels = [spec.label for spec in specs]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise AverageError(f"two averages are called {', '.join(twice)}: give one another name with as=NAME")
    return specs


def make(specs: Iterable[Spec], model: nn.Module, plan: Plan) -> dict[str, Average]:
    """Build the averages for a model, by label."""
    made = {}
    for spec in specs:
        try:
            made[spec.label] = _KINDS[spec.kind].make(model, plan, dict(spec.options))
        except ValueError as error:
            raise AverageError(f"average {spec.label}: {error}") from None
    return made


def problems(texts: Iterable[str], plan: Plan | None) -> list[str]:
    """What is wrong with the averages asked for, one sentence each; all are tried on a tiny model."""
    from torch import nn

    found = []
    for text in texts:
        try:
            spec = parse(text)
            if plan is not None:
                make([spec], nn.LayerNorm(1), plan)  # whose first weights are not drawn
        except AverageError as error:
            found.append(str(error))
    if not found:
        try:
            parse_all(texts)
        except AverageError as error:
            found.append(str(error))
    return found


def _value(kind: str, name: str, text: str, wanted: type) -> Any:
    if wanted is str:
        return text
    if wanted is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if wanted is int:
            return int(text)
        if wanted is float and not math.isnan(value := float(text)):
            return int(value) if name == "n_tolerance" and value.is_integer() else value
    except ValueError:
        pass
    words = {int: "a whole number", float: "a number", bool: "true or false"}[wanted]
    raise AverageError(f"{kind}: {name} must be {words}, got {text!r}")
