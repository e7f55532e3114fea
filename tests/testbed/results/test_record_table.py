"""Records in columns, against the plain list of records."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swad.testbed.results.record_table import RecordTable, read_record_table
from swad.testbed.results.records import Record, RecordError, read_records

RECORDS = st.lists(
    st.builds(
        Record,
        run=st.sampled_from(["a", "a", "a", "b"]),
        step=st.integers(0, 5) | st.just(2**63 - 1),
        domain=st.sampled_from(["photo", "art", None]),
        split=st.sampled_from(["in", "out", None]),
        metric=st.sampled_from(["accuracy", "loss"]),
        value=st.floats(allow_nan=False) | st.integers(-3, 3).map(float),
        average=st.sampled_from([None, "swad"]),
    )
)


@settings(max_examples=40)
@given(RECORDS)
def test_a_table_is_the_sequence_of_its_records(records: list[Record]) -> None:
    table = RecordTable(records)
    assert list(table) == records
    assert len(table) == len(records)
    assert table == records
    assert table == RecordTable(records)
    assert table[1:] == tuple(records[1:])
    assert table != [*records, Record("a", 1, None, None, "loss", 0.0)]


@settings(max_examples=40)
@given(RECORDS)
def test_series_hold_what_a_scan_of_the_records_finds(records: list[Record]) -> None:
    records = [record for record in records if record.run == "a"]
    table = RecordTable(records)
    for metric, split, average in {(r.metric, r.split, r.average) for r in records} | {("other", None, None)}:
        expected: dict[str | None, list[tuple[int, float]]] = {}
        for r in records:
            if (r.metric, r.split, r.average) == (metric, split, average):
                expected.setdefault(r.domain, []).append((r.step, r.value))
        found = table.find(metric, split, average)
        assert {domain: list(zip(*series, strict=True)) for domain, series in found.items()} == expected
    assert sorted(map(repr, table.of_domain("photo"))) == sorted(repr(r) for r in records if r.domain == "photo")
    others = [r for r in records if r.domain == "art"]
    assert sorted(map(repr, table.of_other_domains("photo"))) == sorted(map(repr, others))


@settings(max_examples=40)
@given(RECORDS)
def test_files_are_read_as_line_by_line(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    folder = tmp_path_factory.mktemp("run")
    text = "".join(record.line() + "\n" for record in records)
    (folder / "records.jsonl").write_text(text + '{"torn":')
    assert list(read_record_table(folder)) == read_records(folder)


LINE = Record("a", 1, "photo", "out", "loss", 0.5).line()
FIELDS = json.loads(LINE)
UNUSUAL = {
    "a whole number": {**FIELDS, "value": 2},
    "nan": {**FIELDS, "value": "nan"},
    "a field of a later version": {**FIELDS, "more": [1]},
    "an older schema": {**FIELDS, "v": 0},
    "a newer schema": {**FIELDS, "v": 2},
    "a schema that equals 1": {**FIELDS, "v": True},
    "a negative step": {**FIELDS, "step": -1},
    "a step that equals 1": {**FIELDS, "step": True},
    "a huge step": {**FIELDS, "step": 2**63},
    "a list as a domain": {**FIELDS, "domain": ["photo"]},
    "a number as a run": {**FIELDS, "run": 1},
    "no run": {**FIELDS, "run": None},
    "half a surrogate pair": {**FIELDS, "metric": "\ud800"},
    "text as a value": {**FIELDS, "value": "high"},
    "no value": {name: value for name, value in FIELDS.items() if name != "value"},
    "a list": [FIELDS],
}


@pytest.mark.parametrize("line", [*(json.dumps(fields) for fields in UNUSUAL.values()), "", "{", LINE + "," + LINE])
def test_unusual_lines_are_read_or_named_as_line_by_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "records.jsonl").write_text(f"{LINE}\n{line}\n{LINE}\n")
    try:
        expected = read_records(tmp_path)
    except RecordError as error:
        with pytest.raises(RecordError) as caught:
            read_record_table(tmp_path)
        assert str(caught.value) == str(error)
    else:
        assert repr(list(read_record_table(tmp_path))) == repr(expected)


def test_two_damaged_lines_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    halves = '{"a":[{"x":1}', '{"y":2}]}'
    (tmp_path / "records.jsonl").write_text("\n".join([LINE, *halves, f"{LINE},{LINE}", ""]))
    with pytest.raises(RecordError, match="line 2"):
        read_record_table(tmp_path)
