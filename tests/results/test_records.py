import errno
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swad.results import records
from swad.results.records import Record, RecordError, RecordWriter, export_tensorboard, read_records
from swad.results.runs import find_runs, load_run

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


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@given(record=any_record)
def test_every_record_survives_its_line(record: Record) -> None:
    line = record.line()
    assert "\n" not in line

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(line, parse_constant=refuse)
    assert same(Record.parse(line), record)


@settings(deadline=None, max_examples=30)
@given(written=st.lists(any_record, max_size=8), data=st.data())
def test_a_file_cut_anywhere_reads_as_a_prefix_and_can_be_written_on(
    tmp_path_factory: pytest.TempPathFactory, written: list[Record], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    with RecordWriter(folder, "run") as writer:
        writer.append(*written)
    path = folder / "records.jsonl"
    cut = data.draw(st.integers(0, path.stat().st_size))
    os.truncate(path, cut)
    found = read_records(folder)
    whole = path.read_bytes().count(b"\n")
    assert len(found) == whole
    assert all(map(same, found, written))
    with RecordWriter(folder, "run") as writer:
        writer.add(1, "loss", 0.5)
    assert [record.metric for record in read_records(folder)[whole:]] == ["loss"]


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "run") as writer:
        writer.add(1, "loss", 1.0)
    with open(tmp_path / "records.jsonl", "ab") as file:
        file.write(b"x" * 200_000)
    with RecordWriter(tmp_path, "run") as writer:
        writer.add(2, "loss", 2.0)
    assert [record.step for record in read_records(tmp_path)] == [1, 2]


WRITE_FOR_EVER = """
import sys
from swad.results.records import Record, RecordWriter
writer = RecordWriter(sys.argv[1], "run")
print("ready", flush=True)
step = 0
while True:
    step += 1
    writer.append(*(Record("run", step, f"domain{k}", "out", "loss", 0.1 * k) for k in range(40)))
"""


def test_kill_9_leaves_whole_lines_only(tmp_path: Path) -> None:
    delays = random.Random(0)
    before = 0
    for _ in range(4):
        process = start(WRITE_FOR_EVER, str(tmp_path))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(delays.uniform(0.0, 0.08))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = read_records(tmp_path)
        assert len(found) >= before
        assert all(record.run == "run" and record.metric == "loss" for record in found)
        before = len(found)
    assert before > 0


def test_records_can_be_read_while_a_run_writes(tmp_path: Path) -> None:
    process = start(WRITE_FOR_EVER, str(tmp_path))
    try:
        assert process.stdout is not None
        process.stdout.readline()
        counts = [len(read_records(tmp_path)) for _ in range(8)]
    finally:
        process.kill()
        process.communicate()
    assert counts == sorted(counts)


def test_a_second_writer_is_refused_by_pid_and_let_in_afterwards(tmp_path: Path) -> None:
    process = start(WRITE_FOR_EVER, str(tmp_path))
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(RecordError, match=f"written by process {process.pid}: wait") as caught:
            RecordWriter(tmp_path, "other")
        assert "\n" not in str(caught.value)
    finally:
        process.kill()
        process.communicate()
    RecordWriter(tmp_path, "other").close()


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "run"):
        read_records(tmp_path)  # closing a reader's descriptor must not let the lock go
        with pytest.raises(RecordError, match=f"process {os.getpid()}"):
            RecordWriter(tmp_path, "run")
    RecordWriter(tmp_path, "run").close()


def test_an_orphaned_worker_does_not_keep_the_folder(tmp_path: Path) -> None:
    code = """
import os, sys, time
from swad.results.records import RecordWriter
writer = RecordWriter(sys.argv[1], "run")
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    os.close(1), os.close(2)
time.sleep(60)
"""
    process = start(code, str(tmp_path))
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        RecordWriter(tmp_path, "run").close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_offset_and_cut_back(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "run", sync="always") as writer:
        assert writer.offset() == 0
        writer.add(1, "loss", 1.0)
        offset = writer.offset()
        writer.add(2, "loss", 2.0)
        writer.cut_back(offset)
        writer.add(3, "loss", 3.0)
        with pytest.raises(RecordError, match="records were lost"):
            writer.cut_back(10_000)
        with pytest.raises(RecordError, match="no line ending at byte 5"):
            writer.cut_back(5)
        writer.cut_back(writer.offset())
    assert [record.step for record in read_records(tmp_path)] == [1, 3]
    with pytest.raises(RecordError, match="closed"):
        writer.add(4, "loss", 4.0)


def test_a_full_disk_half_way_takes_the_half_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordWriter(tmp_path, "run")
    writer.add(1, "loss", 1.0)
    real = os.write
    calls = []

    def nearly_full(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, data[:30])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(records.os, "write", nearly_full)
    with pytest.raises(RecordError, match="no space left on device; make room and resume") as caught:
        writer.add(2, "loss", 2.0)
    assert "\n" not in str(caught.value)
    assert len(calls) == 2
    monkeypatch.undo()
    writer.add(3, "loss", 3.0)
    writer.close()
    assert [record.step for record in read_records(tmp_path)] == [1, 3]


def test_a_write_that_hits_a_real_limit(tmp_path: Path) -> None:
    code = """
import resource, sys
from swad.results.records import RecordError, RecordWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
writer = RecordWriter(sys.argv[1], "run")
try:
    for step in range(100):
        writer.add(step, "loss", 1.0)
except RecordError as error:
    print(error)
"""
    out, _ = start(code, str(tmp_path)).communicate()
    assert "file too large; raise the limit on file sizes" in out
    assert out.count("\n") == 1
    assert (tmp_path / "records.jsonl").read_bytes().endswith(b"\n")
    assert 5 < len(read_records(tmp_path)) < 20
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_device_that_is_full(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").symlink_to("/dev/full")
    writer = RecordWriter(tmp_path, "run")
    with pytest.raises(RecordError, match=r"no space left|invalid argument"):
        writer.add(1, "loss", 1.0)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(records.os, "open", refuse)
    with pytest.raises(RecordError, match=r"cannot write .*; choose a folder"):
        RecordWriter(tmp_path, "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RecordError, match="permission denied; choose a folder you may write to"):
        RecordWriter(tmp_path, "run")


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="choose a folder, not a file"):
        RecordWriter(tmp_path / "file", "run")


def test_a_newer_schema_is_a_clear_error(tmp_path: Path) -> None:
    line = Record("run", 1, None, None, "loss", 1.0).line()
    (tmp_path / "records.jsonl").write_text(line + "\n" + line.replace('"v":1', '"v":2') + "\n")
    with pytest.raises(RecordError, match="line 2: written with schema 2, this swad reads up to 1: install a newer"):
        read_records(tmp_path)


@pytest.mark.parametrize("line", ["", "{}", "[]", "null", '{"v":1}', '{"v":"1"}', "\x00\x00", '{"v":1,"run":1}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "records.jsonl").write_text(line + "\n")
    with pytest.raises(RecordError, match=r"line 1 is not a record .*: the file was damaged"):
        read_records(tmp_path)


def test_added_fields_are_passed_over() -> None:
    line = Record("run", 1, None, None, "loss", 1.0).line()
    assert Record.parse(line[:-1] + ',"unit":"nats"}').value == 1.0


def test_runs_are_found_wherever_they_lie(tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"target": "photo", "trial": 2, "dataset": "PACS"}))
        with RecordWriter(folder, name) as writer:
            writer.add(1, "loss", 1.0)
    (tmp_path / "b" / "done.json").write_text("{}")
    deep, b = find_runs(tmp_path)
    assert (deep.finished, b.finished) == (False, True)
    assert (b.targets, b.trial, b.dataset, b.algorithm) == (("photo",), 2, "PACS", "erm")
    assert load_run(b.path).records == b.records
    with pytest.raises(RecordError, match="no run below"):
        find_runs(_empty(tmp_path))
    with pytest.raises(RecordError, match="not a folder"):
        find_runs(tmp_path / "nowhere")


def _empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read"):
        load_run(tmp_path)
    for text, said in (("{", "is not JSON"), ("[]", "must hold a JSON object, got list")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RecordError, match=said):
            load_run(tmp_path)
    with pytest.raises(RecordError, match="cannot read"):
        read_records(tmp_path)


def test_tensorboard_gets_every_value(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = [Record("r", step, "photo", "out", "loss", 1 / step) for step in (1, 2, 3)]
    assert export_tensorboard(written, tmp_path / "events") == 3
    accumulator = EventAccumulator(str(tmp_path / "events"))
    accumulator.Reload()
    found = accumulator.Tensors("loss/photo/out")
    assert [event.step for event in found] == [1, 2, 3]
    assert [event.tensor_proto.float_val[0] for event in found] == pytest.approx([1, 1 / 2, 1 / 3])
    with pytest.raises(RecordError, match="holds TensorBoard events already"):
        export_tensorboard(written, tmp_path / "events")


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, swad.results.records, swad.results.selection, swad.results.tables, swad.results.figures.training, swad.results.page.build;"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'tensorboard', 'jinja2'} & set(sys.modules)))"
    )
    out, err = start(code).communicate()
    assert out == "[]\n", err
