import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.python_process import start_python
from swad.testbed.results.records import Record, RecordError, RecordWriter, read_records

names = st.text(max_size=20)
any_record = st.builds(
    Record,
    run=names,
    step=st.integers(0, 10**9),
    domain=st.none() | names,
    split=st.none() | names,
    metric=names,
    value=st.floats(allow_nan=True, allow_infinity=True),
    average=st.none() | names,
)


def same(a: Record, b: Record) -> bool:
    if math.isnan(a.value):
        return math.isnan(b.value) and a.line() == b.line()
    return a == b and math.copysign(1, a.value) == math.copysign(1, b.value)


@given(record=any_record)
def test_every_record_survives_its_line(record: Record) -> None:
    line = record.line()
    assert "\n" not in line

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(line, parse_constant=refuse)
    assert same(Record.parse(line), record)


def test_a_run_directory_has_one_writer(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "run"):
        with pytest.raises(RecordError, match=f"is being written by process {os.getpid()}: wait") as caught:
            RecordWriter(tmp_path / "run")
        assert "\n" not in str(caught.value)
    RecordWriter(tmp_path / "run").close()


def test_records_after_the_offset_are_removed(tmp_path: Path) -> None:
    with RecordWriter(tmp_path) as writer:
        assert writer.offset() == 0
        writer.append(Record("run", 1, None, None, "loss", 1.0))
        offset = writer.offset()
        writer.append(Record("run", 2, None, None, "loss", 2.0))
        writer.truncate(offset)
        writer.append(Record("run", 3, None, None, "loss", 3.0))
        with pytest.raises(RecordError, match=r"do not match the checkpoint .*has \d+ bytes.*new directory"):
            writer.truncate(10_000)
        with pytest.raises(RecordError, match="no line ending at byte 5"):
            writer.truncate(5)
    assert [record.step for record in read_records(tmp_path)] == [1, 3]


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"File exists: '.*file'"):
        RecordWriter(tmp_path / "file")


def test_a_newer_schema_is_a_clear_error(tmp_path: Path) -> None:
    line = Record("run", 1, None, None, "loss", 1.0).line()
    (tmp_path / "records.jsonl").write_text(line + "\n" + line.replace('"v":1', '"v":2') + "\n")
    with pytest.raises(RecordError, match="line 2: schema 2 is newer than this swad, which reads up to 1: upgrade"):
        read_records(tmp_path)


@pytest.mark.parametrize("line", ["", "{}", "[]", "null", '{"v":1}', '{"v":"1"}', "\x00\x00", '{"v":1,"run":1}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "records.jsonl").write_text(line + "\n")
    with pytest.raises(RecordError, match=r"line 1 is not a record .*: the file is damaged"):
        read_records(tmp_path)


def test_unknown_fields_are_ignored() -> None:
    line = Record("run", 1, None, None, "loss", 1.0).line()
    assert Record.parse(line[:-1] + ',"unit":"nats"}').value == 1.0


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, swad.testbed.results.records, swad.testbed.results.selection, swad.testbed.results.tables;"
        "import swad.testbed.results.figures.training, swad.testbed.results.figures.curves;"
        "import swad.testbed.results.page.build;"
        "heavy = {'torch', 'numpy', 'pandas', 'msgspec', 'matplotlib', 'tensorboard', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out, err = start_python(code).communicate()
    assert out == "[]\n", err
