import errno
import gzip
import os
import random
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.python_process import start_python
from helpers.special_files import SPECIAL, at_most, replace_by
from swad.util import jsonl
from swad.util.files import FileLock, FileLockedError, FileLockLostError
from swad.util.jsonl import JsonlWriter, compressed_path, read_lines


def lines_of(path: Path) -> list[str]:
    return [line.decode() for _, line in read_lines(path)]


json_lines = st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=30), max_size=8)


@settings(max_examples=30)
@given(written=json_lines, data=st.data())
def test_a_file_cut_anywhere_reads_as_a_prefix_and_can_be_appended_to(
    tmp_path_factory: pytest.TempPathFactory, written: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    with JsonlWriter(path) as writer:
        writer.write(*written)
    os.truncate(path, data.draw(st.integers(0, path.stat().st_size)))
    complete = path.read_bytes().count(b"\n")
    assert lines_of(path) == written[:complete]
    with JsonlWriter(path) as writer:
        writer.write("{}")
    assert lines_of(path) == [*written[:complete], "{}"]


def test_a_compressed_file_is_read_in_place_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with JsonlWriter(path) as writer:
        writer.write("{}", '{"a": 1}')
    jsonl.compressed_path(path).write_bytes(gzip.compress(b"[]\ntorn"))
    assert lines_of(path) == ["{}", '{"a": 1}']
    path.unlink()
    assert lines_of(path) == ["[]"]
    jsonl.compressed_path(path).write_bytes(b"no gzip")
    with pytest.raises(OSError, match="damaged") as error:
        lines_of(path)
    assert error.value.filename == f"{path}.gz"
    jsonl.compressed_path(path).unlink()
    with pytest.raises(FileNotFoundError):
        lines_of(path)


def test_a_torn_line_longer_than_a_block_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"1\n" + b"x" * 200_000)
    with JsonlWriter(path) as writer:
        writer.write("2")
    assert lines_of(path) == ["1", "2"]


APPEND_FOREVER = """
import sys
from swad.util.jsonl import JsonlWriter
writer = JsonlWriter(sys.argv[1])
print("ready", flush=True)
while True:
    writer.write(*(str(k) * 100 for k in range(40)))
"""


@pytest.mark.slow
def test_kill_9_leaves_complete_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    delays = random.Random(0)
    before = 0
    for _ in range(4):
        process = start_python(APPEND_FOREVER, str(path))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(delays.uniform(0.0, 0.08))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        lines = lines_of(path)
        assert len(lines) >= before
        assert set(lines) <= {str(k) * 100 for k in range(40)}
        before = len(lines)
    assert before > 0


def test_a_file_can_be_read_while_a_process_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    # With pauses: a reader takes longer for a line than a writer, so each time it would find several times as much.
    process = start_python("import time" + APPEND_FOREVER.replace("True", "time.sleep(0.001) is None"), str(path))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        counts = [len(lines_of(path)) for _ in range(8)]
    finally:
        process.kill()
        process.communicate()
    assert counts == sorted(counts)


def test_a_reader_takes_what_was_there_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    size_of = os.fstat
    with JsonlWriter(path) as writer:
        writer.write("1", "2")

        def written_to_afterwards(fd: int) -> os.stat_result:
            result = size_of(fd)
            monkeypatch.undo()
            writer.write("3")
            return result

        monkeypatch.setattr(os, "fstat", written_to_afterwards)
        assert lines_of(path) == ["1", "2"]
        assert lines_of(path) == ["1", "2", "3"]


def test_truncate_removes_what_was_written_after_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with JsonlWriter(path) as writer:
        assert writer.offset() == 0
        writer.write('{"a": 1}')
        offset = writer.offset()
        writer.write('{"a": 2}')
        writer.truncate(offset)
        writer.write('{"a": 3}')
        with pytest.raises(ValueError, match=r"has 18 bytes, cannot cut it back to 10000"):
            writer.truncate(10_000)
        with pytest.raises(ValueError, match="no line ending at byte 5"):
            writer.truncate(5)
        writer.truncate(writer.offset())
    assert lines_of(path) == ['{"a": 1}', '{"a": 3}']
    with pytest.raises(ValueError, match="closed"):
        writer.write("{}")


@pytest.mark.parametrize("truncates", [True, False])
def test_a_disk_that_fills_up_during_a_write_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truncates: bool
) -> None:
    path = tmp_path / "rows.jsonl"
    writer = JsonlWriter(path, FileLock(tmp_path / "lock"))
    writer.write("1")
    write = os.write
    sizes = []

    def nearly_full(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        if len(sizes) == 1:
            return write(fd, data[:30])
        return full()

    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(jsonl.os, "write", nearly_full)
    if not truncates:
        monkeypatch.setattr(jsonl.os, "ftruncate", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*rows.jsonl'") as caught:
        writer.write("2" * 100)
    assert "\n" not in str(caught.value)
    assert len(sizes) == 2
    monkeypatch.undo()
    if not truncates:  # the torn line stays for the next writer, and nothing is glued to it
        with pytest.raises(ValueError, match="closed"):
            writer.write("3")
        with pytest.raises(FileLockedError):
            FileLock(tmp_path / "lock")
        writer.close()
        writer = JsonlWriter(path, FileLock(tmp_path / "lock"))
    writer.write("3")
    writer.close()
    assert lines_of(path) == ["1", "3"]


def test_a_limit_on_the_file_size_leaves_each_line_complete_or_absent(tmp_path: Path) -> None:
    code = """
import resource, sys
from swad.util.jsonl import JsonlWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
writer = JsonlWriter(sys.argv[1])
try:
    for step in range(100):
        writer.write("x" * 69)
except OSError as error:
    print(error)
"""
    path = tmp_path / "rows.jsonl"
    out, _ = start_python(code, str(path)).communicate()
    assert f"File too large: '{path}'" in out
    assert out.count("\n") == 1
    assert path.read_bytes() == (b"x" * 69 + b"\n") * 14


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_cannot_be_read_to_its_end_is_neither_read_nor_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rows.jsonl"
    replace_by(kind, path)
    with at_most(5), pytest.raises(OSError, match=r"pipe or a device|20,000,000,000 bytes"):
        list(read_lines(path))
    with at_most(5), pytest.raises(OSError, match=r"pipe or a device|20,000,000,000 bytes"):
        JsonlWriter(path)


def test_a_compressed_file_that_holds_far_more_than_lines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    compressed_path(path).write_bytes(gzip.compress(b"\0" * 10**6))
    assert list(read_lines(path)) == []
    monkeypatch.setattr(jsonl, "MAX_BYTES", 10**5)
    with pytest.raises(OSError, match="more than 100,000 bytes after it is decompressed"):
        list(read_lines(path))


def replace_by_copy(path: Path) -> None:
    """As an editor, `sed -i` and tools that keep directories in step do."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes() + b'"edited"\n')
    os.replace(copy, path)


def overwrite(path: Path) -> None:
    """As editors and `cp` do, which keep the file."""
    path.write_bytes(path.read_bytes() + b'"edited"\n')


REPLACEMENTS = {
    "copy": replace_by_copy,
    "overwritten": overwrite,
    "emptied": lambda path: path.write_bytes(b""),
    "removed": Path.unlink,
    "link": lambda path: (path.unlink(), path.symlink_to("elsewhere.jsonl")),
}


@pytest.mark.parametrize("how", REPLACEMENTS)
@pytest.mark.parametrize("then", ["write", "offset", "truncate"])
def test_a_file_that_was_replaced_while_it_is_written_loses_no_line(tmp_path: Path, how: str, then: str) -> None:
    path = tmp_path / "rows.jsonl"
    with JsonlWriter(path) as writer:
        writer.write("1")
        offset = writer.offset()
        writer.write("2")
        REPLACEMENTS[how](path)
        with pytest.warns(UserWarning, match=r"rows.jsonl was (replaced|removed) while it was being written"):
            {"write": lambda: writer.write("3"), "offset": writer.offset, "truncate": lambda: writer.truncate(offset)}[
                then
            ]()
        writer.write("4")
    assert lines_of(path) == {"write": ["1", "2", "3", "4"], "offset": ["1", "2", "4"], "truncate": ["1", "4"]}[then]
    aside = tmp_path / "rows.jsonl.replaced"
    assert os.path.lexists(aside) == (how != "removed")
    assert how not in ("copy", "overwritten") or lines_of(aside) == ["1", "2", '"edited"']
    assert not (tmp_path / "elsewhere.jsonl").exists()


@pytest.mark.parametrize("how", [lambda path: path.write_text("7\n2\n"), replace_by_copy, Path.unlink])
@pytest.mark.parametrize("then", [lambda writer: writer.offset(), lambda writer: writer.__exit__(None)])
def test_another_content_of_the_same_length_is_noticed_at_an_offset_and_at_the_end(tmp_path: Path, how, then) -> None:
    path = tmp_path / "rows.jsonl"
    writer = JsonlWriter(path)
    writer.write("1", "2")
    how(path)
    with pytest.warns(UserWarning, match="its lines were written again"):
        then(writer)
    writer.close()
    assert lines_of(path) == ["1", "2"]


def test_a_replaced_file_that_cannot_be_written_again_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with JsonlWriter(path) as writer:
        writer.write("1")
        replace_by_copy(path)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            with pytest.raises(OSError, match="No space left"):
                writer.write("2")
        with pytest.warns(UserWarning, match="was replaced"):
            writer.write("3")
    assert lines_of(path) == ["1", "3"]


@pytest.mark.parametrize("then", ["write", "offset", "truncate"])
def test_nothing_is_written_after_the_lock_is_lost(tmp_path: Path, then: str) -> None:
    path, lock = tmp_path / "rows.jsonl", tmp_path / "lock"
    with JsonlWriter(path, FileLock(lock)) as first:
        first.write("1")
        lock.unlink()
        with JsonlWriter(path, FileLock(lock)) as second:
            second.write("2")
            call = {"write": lambda: first.write("3"), "offset": first.offset, "truncate": lambda: first.truncate(0)}
            with pytest.raises(FileLockLostError):
                call[then]()
        first.close()
    assert lines_of(path) == ["1", "2"]
