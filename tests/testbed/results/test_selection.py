import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accuracies import selected as select
from helpers.configs import roles
from swad.testbed.results.records import LIVE, Record
from swad.testbed.results.run_data import RunData
from swad.testbed.results.runs import RunList
from swad.testbed.results.selection import ORACLES, SelectionError, choose, collect_results, run_scores
from swad.testbed.results.selection_file import make_selection
from swad.testbed.results.unselected_weights import unselected_weights

SOURCES = ("art", "cartoon")
TARGET = "photo"


def accuracy(step: int, domain: str, split: str, value: float, average: str | None = None) -> Record:
    return Record("run", step, domain, split, "accuracy", value, average)


def run(
    *records: Record,
    target: str | list[str] = TARGET,
    trial: int = 0,
    lr: float = 1.0,
    name: str = "run",
    **more: object,
) -> RunData:
    config = {"dataset": "PACS", "algorithm": "erm", "target": target, "trial": trial, "lr": lr, **more}
    return RunData(Path(name), config, records, finished=True, roles=roles(config))


def live(
    source: dict[int, float], target_in: dict[int, float], target_out: dict[int, float] | None = None
) -> list[Record]:
    """Records of live weights by step: the same source accuracy for each source."""
    found = [accuracy(step, domain, "out", value) for step, value in source.items() for domain in SOURCES]
    found += [accuracy(step, TARGET, "in", value) for step, value in target_in.items()]
    found += [accuracy(step, TARGET, "out", value) for step, value in (target_out or {}).items()]
    return found


def without_target(values: dict[str, tuple[float, float]], **options: object) -> RunData:
    """A finished run without a target: validation and test accuracy by weights, the same for each source."""
    records = [
        accuracy(300, domain, split, value, average)
        for average, both in values.items()
        for split, value in zip(("out", "test"), both, strict=True)
        for domain in SOURCES
    ]
    return run(*records, target=None, **options)  # type: ignore[arg-type]


def test_the_validation_accuracy_of_live_weights_is_that_of_the_best_step_with_a_number() -> None:
    one = run(*live({100: float("nan"), 200: 0.6, 300: 0.4}, {}))
    assert run_scores(RunList([one]), "iid", [LIVE, "swad"]) == {(0, LIVE): 0.6}


def test_without_a_target_validation_selects_and_the_sources_are_reported() -> None:
    runs = [
        without_target({"swad": (0.7, 0.9)}, lr=1.0, name="a"),
        without_target({"swad": (0.8, 0.6)}, lr=2.0, name="b"),
        run(accuracy(300, TARGET, "in", 0.1, "swad"), name="c"),
    ]
    for method in ("iid", "last"):
        held_out, shipped = sorted(select(runs, method, "swad"), key=lambda result: result.target != TARGET)
        assert (held_out.target, held_out.value) == (TARGET, 0.1)
        assert (shipped.target, shipped.value, shipped.score, shipped.step) == ("none", 0.6, 0.8, 300)
        assert shipped.run.path == Path("b")
    for method in ("lodo", *ORACLES):
        with pytest.raises(SelectionError, match=f"{method} needs runs with a target: select by iid or last"):
            select(runs[:2], method, "swad")
    live_run = run(*[accuracy(step, d, "out", v) for step, v in ((100, 0.7), (200, 0.6)) for d in SOURCES], target=None)
    (result,) = select([live_run], "iid")
    assert (result.value, result.step) == (0.7, 100)
    # Both kinds of accuracy have a table of their own, and one name in files.
    tables = collect_results(runs)
    assert [(each.dataset, each.targets, each.missing_targets) for each in tables] == [
        ("PACS", (TARGET,), ()),
        ("PACS, no target", ("none",), ()),
    ]
    assert {(each.dataset, each.target) for each in make_selection(tables, Path()).runs} == {
        ("PACS", "none"),
        ("PACS", TARGET),
    }


def test_iid_takes_the_best_step_by_source_validation() -> None:
    (result,) = select([run(*live({100: 0.7, 200: 0.9, 300: 0.8}, {100: 0.5, 200: 0.4, 300: 0.6}))], "iid")
    assert (result.value, result.step, result.target, result.trial) == (0.4, 200, TARGET, 0)


def test_the_mean_is_over_domains_not_the_luckiest() -> None:
    records = [
        accuracy(1, "art", "out", 0.99),
        accuracy(1, "cartoon", "out", 0.1),
        accuracy(2, "art", "out", 0.6),
        accuracy(2, "cartoon", "out", 0.6),
        accuracy(1, TARGET, "in", 0.0),
        accuracy(2, TARGET, "in", 1.0),
    ]
    assert select([run(*records)])[0].step == 2


def test_a_source_that_was_held_out_is_no_validation() -> None:
    records = [*live({100: 0.7, 200: 0.6}, {}), *(accuracy(step, "sky", "out", step / 200) for step in (100, 200))]
    pair = run(*records, target=[TARGET, "sky"])
    assert choose(RunList([pair]), TARGET, "iid", LIVE).step == 100


def test_a_half_recorded_step_is_not_judged() -> None:
    records = [*live({100: 0.7}, {100: 0.5, 200: 0.1}), accuracy(200, "art", "out", 0.99)]
    assert select([run(*records)])[0].step == 100


def test_the_earlier_of_equals_wins_and_nan_never_does() -> None:
    steps = {100: float("nan"), 200: 0.8, 300: 0.8}
    assert select([run(*live(steps, dict.fromkeys(steps, 0.5)))])[0].step == 200


def test_hyperparameters_are_chosen_with_the_step() -> None:
    weak = run(*live({100: 0.5, 200: 0.6}, {100: 0.9, 200: 0.9}), lr=1.0, name="weak")
    strong = run(*live({100: 0.8, 200: 0.7}, {100: 0.3, 200: 0.2}), lr=2.0, name="strong")
    (result,) = select([weak, strong], "iid")
    assert (result.run.path.name, result.step, result.value) == ("strong", 100, 0.3)
    (result,) = select([weak, strong], "last")
    assert (result.run.path.name, result.step, result.value) == ("strong", 200, 0.2)


def test_the_two_oracles_differ_in_the_step() -> None:
    one = run(*live({1: 0.5, 2: 0.5}, {1: 0.90, 2: 0.40}, {1: 0.9, 2: 0.4}), lr=1.0)
    two = run(*live({1: 0.5, 2: 0.5}, {1: 0.10, 2: 0.55}, {1: 0.1, 2: 0.5}), lr=2.0)
    (by_last,) = select([one, two], "oracle")
    assert (by_last.value, by_last.step) == (0.55, 2)
    (by_step,) = select([one, two], "oracle_best_step")
    assert (by_step.value, by_step.step) == (0.90, 1)


def test_an_average_counts_at_its_last_step_only() -> None:
    records = [
        accuracy(step, domain, "out", value, "swad") for step, value in ((1, 0.9), (2, 0.5)) for domain in SOURCES
    ]
    records += [accuracy(1, TARGET, "in", 0.1, "swad"), accuracy(2, TARGET, "in", 0.7, "swad")]
    for method in ("iid", "last"):
        (result,) = select([run(*records)], method, "swad")
        assert (result.value, result.step) == (0.7, 2)


def test_one_run_needs_no_validation_accuracy_but_two_do() -> None:
    alone = run(accuracy(9, TARGET, "in", 0.7, "swad"))
    assert select([alone], "iid", "swad")[0].value == 0.7
    with pytest.raises(SelectionError, match="cannot select from 2 runs without a validation accuracy"):
        select([alone, run(accuracy(9, TARGET, "in", 0.8, "swad"), lr=2.0)], "iid", "swad")


def test_the_reported_split_can_be_chosen() -> None:
    records = [*live({1: 0.5}, {1: 0.6}, {1: 0.7}), accuracy(1, TARGET, "full", 0.62)]
    assert [select([run(*records)], split=split)[0].value for split in ("in", "out", "full")] == [0.6, 0.7, 0.62]
    with pytest.raises(SelectionError, match="no accuracy of the live weights on split 'test' of target photo"):
        select([run(*records)], split="test")


def test_every_trial_selects_its_own_settings() -> None:
    def at(trial: int, lr: float, source: float, target: float) -> RunData:
        return run(*live({1: source}, {1: target}), trial=trial, lr=lr)

    runs = [at(0, 1.0, 0.9, 0.1), at(0, 2.0, 0.8, 0.2), at(1, 1.0, 0.5, 0.3), at(1, 2.0, 0.6, 0.4)]
    assert [result.value for result in select(runs)] == [0.1, 0.4]


def lodo_runs(lr: float, left_out: float, target: float) -> list[RunData]:
    runs = [run(*live({1: 0.9, 2: 0.9}, {1: 0.0, 2: target}), lr=lr)]
    for place, source in enumerate(SOURCES):
        other = SOURCES[1 - place]
        runs.append(
            run(
                accuracy(1, source, "in", 0.0),
                accuracy(2, source, "in", left_out),
                accuracy(2, other, "out", 0.99),
                accuracy(2, TARGET, "in", 1 - left_out),
                target=[TARGET, source],
                lr=lr,
            )
        )
    return runs


def test_lodo_judges_a_setting_by_sources_left_out_with_the_target() -> None:
    runs = [*lodo_runs(1.0, 0.5, 0.31), *lodo_runs(2.0, 0.6, 0.32)]
    (result,) = [result for result in select(runs, "lodo") if result.target == TARGET]
    assert (result.value, result.step) == (0.32, 2)


@pytest.mark.parametrize("machine", [{"engine": "graph"}, {"cache": "/fast/disk"}, {"threads": 4}])
def test_lodo_ignores_how_and_where_a_run_was_computed(machine: dict[str, object]) -> None:
    alone, *pairs = lodo_runs(1.0, 0.5, 0.3)
    config = {**alone.config, **machine}
    elsewhere = dataclasses.replace(alone, config=config, roles=roles(config))
    (result,) = [result for result in select([elsewhere, *pairs], "lodo") if result.target == TARGET]
    assert result.value == 0.3


def test_lodo_says_what_it_lacks() -> None:
    with pytest.raises(
        SelectionError, match=r"lodo needs .* the sources are art, cartoon, and there are pairs with art;"
    ):
        select(lodo_runs(1.0, 0.5, 0.3)[:2], "lodo")


def test_an_unknown_selection_lists_the_others() -> None:
    with pytest.raises(SelectionError, match=r"method must be one of iid, last, lodo.*, got 'best'"):
        select([run()], "best")


def test_lodo_keeps_complete_trials_and_names_the_incomplete() -> None:
    complete = lodo_runs(1.0, 0.5, 0.31)
    partial = [dataclasses.replace(each, config={**each.config, "trial": 1}) for each in lodo_runs(1.0, 0.5, 0.4)[:2]]
    runs = [*complete, *partial]
    results = select(runs, "lodo", targets=[TARGET])
    assert [(result.trial, result.value) for result in results] == [(0, 0.31)]
    (missing,) = collect_results(runs, "lodo")[0].missing.itertuples()
    assert (missing.target, missing.trial) == (TARGET, 1)
    assert "there are pairs with art;" in missing.reason


def test_a_trial_whose_run_lacks_the_weights_is_named() -> None:
    records = [accuracy(9, domain, "out", 0.5, "swad") for domain in SOURCES]
    runs = [
        run(*records, accuracy(9, TARGET, "in", 0.7, "swad"), trial=0),
        run(accuracy(9, TARGET, "in", 0.7, "best"), trial=1, name="photo-1"),
    ]
    results = select(runs, "iid", "swad")
    assert [result.trial for result in results] == [0]
    missing = collect_results(runs)[0].missing
    assert missing[missing.weights == "swad"][["trial", "reason"]].to_numpy().tolist() == [
        [1, "the run photo-1 has no accuracy of these weights"]
    ]


def test_a_result_carries_its_run_weights_and_hyperparameters() -> None:
    steps = live({1: 0.5, 2: 0.8}, {1: 0.6, 2: 0.7})
    (result,) = select([run(*steps, lr=1.0, name="a"), run(*live({2: 0.9}, {2: 0.4}), lr=2.0, name="b")])
    assert (result.run.path, result.step, result.weights) == (Path("b"), 2, LIVE)
    assert result.run.hyperparameters["lr"] == 2.0


# What matters most: the target does not take part.


fractions = st.floats(0, 1)
anything = st.floats(allow_nan=True, allow_infinity=True)
WEIGHTS = (LIVE, "best", "swad")


@st.composite
def searches(draw: st.DrawFn) -> list[RunData]:
    """A search over two settings: for each a run with the target held out, and one with the target and each source."""
    runs = []
    for lr in (1.0, 2.0):
        for held_out in (None, *SOURCES):
            records = [
                accuracy(step, domain, split, draw(fractions), None if average == LIVE else average)
                for average in WEIGHTS
                for step in ((1, 2) if average == LIVE else (2,))
                for domain in (*SOURCES, TARGET)
                for split in ("in", "out")
            ]
            target = TARGET if held_out is None else [TARGET, held_out]
            runs.append(run(*records, target=target, lr=lr, name=f"{lr}-{held_out}"))
    return runs


def with_other_targets(runs: list[RunData], data: st.DataObject) -> list[RunData]:
    """Replace every value on the target, also by nan and inf."""

    def other(record: Record) -> Record:
        return dataclasses.replace(record, value=data.draw(anything)) if record.domain == TARGET else record

    return [dataclasses.replace(run, records=tuple(map(other, run.records))) for run in runs]


def choices(runs: list[RunData]) -> list[object]:
    """Run, step and score of every selection that is no oracle, by each way to get at it."""
    found: list[object] = []
    for method in ("iid", "last", "lodo"):
        results = collect_results(runs, method)
        found += [make_selection(results, "."), unselected_weights(results)]
        for average in WEIGHTS:
            found += [(r.run.path, r.step, r.score) for r in select(runs, method, average, targets=[TARGET])]
    return found


@settings(max_examples=20)
@given(searches(), st.data())
def test_no_value_of_the_target_moves_a_choice(runs: list[RunData], data: st.DataObject) -> None:
    assert choices(with_other_targets(runs, data)) == choices(runs)


def test_an_oracle_does_follow_the_target() -> None:
    """The test above can fail: the same change of the target's values moves the choice of an oracle."""

    def pair(first: float, second: float) -> list[RunData]:
        values = {1.0: first, 2.0: second}
        return [run(*live({1: 0.5}, {1: 0.5}, {1: value}), lr=lr, name=f"{lr}") for lr, value in values.items()]

    for method in ORACLES:
        (one,), (other,) = select(pair(0.1, 0.2), method), select(pair(0.2, 0.1), method)
        assert one.run.path != other.run.path
        assert one.score == other.score == 0.2


def test_in_domain_accuracy_prefers_the_test_split() -> None:
    records = [accuracy(1, domain, "out", 0.8, "swad") for domain in SOURCES]
    records += [accuracy(1, TARGET, split, 0.5, "swad") for split in ("in", "test")]
    (result,) = select([run(*records)], "iid", "swad")
    assert (result.source, result.step) == (pytest.approx(0.8), 1)
    records += [accuracy(1, domain, "test", 0.7, "swad") for domain in SOURCES]
    (result,) = select([run(*records)], "iid", "swad")
    assert (result.source, result.step) == (pytest.approx(0.7), 1)
