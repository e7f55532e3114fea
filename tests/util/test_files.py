import errno
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.python_process import start_python
from helpers.special_files import SPECIAL, at_most, replace_by
from swad.util.files import (
    FileLock,
    FileLockedError,
    FileLockLostError,
    atomic_write,
    disk_advice,
    is_locked,
    read_bytes,
    read_json,
    sha256,
    write_json,
    write_text,
)
from swad.util.jsonl import JsonlWriter


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("read", [read_bytes, read_json])
def test_what_cannot_be_read_to_its_end_is_refused_at_once(tmp_path: Path, read, kind: str) -> None:
    path = tmp_path / "config.json"
    replace_by(kind, path)
    with at_most(5), pytest.raises(OSError, match=r"pipe or a device|20,000,000,000 bytes") as refused:
        read(path)
    assert refused.value.filename == str(path)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, "{", "", "\x00", "9" * 5000, "\ud800"])
def test_a_file_that_is_not_json_is_a_value_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ValueError):
        read_json(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_lock_file_is_a_file(tmp_path: Path, kind: str) -> None:
    replace_by(kind, tmp_path / "run.lock")
    with at_most(5):
        assert not is_locked(tmp_path / "run.lock")
    with at_most(5), pytest.raises(OSError, match=r"pipe or a device|is a symbolic link"):
        FileLock(tmp_path / "run.lock")


def test_a_checksum_of_a_pipe_is_refused(tmp_path: Path) -> None:
    replace_by("pipe", tmp_path / "best.safetensors")
    with at_most(5), pytest.raises(OSError, match="pipe or a device"):
        sha256(tmp_path / "best.safetensors")


def test_a_file_is_replaced_only_when_the_block_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    write_text(path, "new – ± γ")
    assert path.read_text(encoding="utf-8") == "new – ± γ"
    assert [file.name for file in path.parent.iterdir()] == ["table.txt"]


def test_a_file_that_its_writer_made_private_gets_the_usual_mode(tmp_path: Path) -> None:
    usual, private = tmp_path / "usual", tmp_path / "private"
    usual.touch()
    with atomic_write(private) as partial:
        partial.chmod(0o600)  # as safetensors does
    assert private.stat().st_mode == usual.stat().st_mode


def test_a_symbolic_link_that_a_user_names_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, link, dangling = tmp_path / "real" / "page.html", tmp_path / "link.html", tmp_path / "new.html"
    path.write_text("old")
    link.symlink_to(path)
    dangling.symlink_to(Path("real") / "other.html")
    write_text(link, "new", follow_link=True)
    write_text(dangling, "other", follow_link=True)
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert path.read_text() == "new"
    assert (tmp_path / "real" / "other.html").read_text() == "other"


def test_a_symbolic_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    """In a run directory from somebody else, it may point to any file of the user."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name, target in (("done.json", precious), ("config.json", tmp_path / "new")):
        (tmp_path / name).symlink_to(target)
        write_text(tmp_path / name, "{}")
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_text() == "{}"
    assert precious.read_text() == "mine"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("target", ["precious", "new"])
@pytest.mark.parametrize("open_file", [FileLock, JsonlWriter], ids=["lock", "lines"])
def test_a_file_that_is_opened_for_writing_is_no_link(
    tmp_path: Path, open_file: Callable[[Path], object], target: str
) -> None:
    (tmp_path / "precious").write_bytes(b'{"a": 1}\ntorn')
    link = tmp_path / "records.jsonl"
    link.symlink_to(target)
    with pytest.raises(OSError, match=r"records.jsonl is a symbolic link, and no link is followed") as error:
        open_file(link)
    assert disk_advice(error.value) == "remove the link, then run the same command again"
    assert (tmp_path / "precious").read_bytes() == b'{"a": 1}\ntorn'
    assert not (tmp_path / "new").exists()


def test_links_above_a_file_are_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    write_text(tmp_path / "runs" / "done.json", "{}")
    FileLock(tmp_path / "runs" / "run.lock").release()
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["done.json", "run.lock"]


@pytest.mark.parametrize("through_link", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "socket", "directory"])
def test_only_regular_files_are_replaced(tmp_path: Path, kind: str, through_link: bool) -> None:
    path = tmp_path / "special"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    else:
        path.mkdir()
    mode = path.stat().st_mode
    output = tmp_path / "link" if through_link else path
    if through_link:
        output.symlink_to(path)
    with pytest.raises(OSError, match="must be a regular file or a new one") as caught:
        write_text(output, "text")
    assert str(output) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert stat.S_IFMT(path.stat().st_mode) == stat.S_IFMT(mode)


def test_two_threads_do_not_mix_their_contents(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with atomic_write(path) as first, atomic_write(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write_text(path, str(n % 10) * 50_000), range(60)))
    assert len(set(path.read_text())) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_json_is_written_with_unknown_values_as_text(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"data": Path("images"), "steps": 5})
    assert json.loads((tmp_path / "config.json").read_text()) == {"data": "images", "steps": 5}


def test_a_limit_on_the_file_size_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    write_text(path, "old")
    code = """
import resource, sys
from swad.util.files import write_text
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_text(sys.argv[1], "x" * 2000)
except OSError as error:
    print(error)
"""
    out, _ = start_python(code, str(path)).communicate()
    assert "File too large" in out
    assert out.count("\n") == 1
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["result.txt"]


def test_a_kill_during_a_write_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    code = """
import sys
from swad.util.files import write_text
write_text(sys.argv[1], "0" * 100_000)
print("ready", flush=True)
while True:
    for digit in "0123456789":
        write_text(sys.argv[1], digit * 100_000)
"""
    process = start_python(code, str(path))
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    text = path.read_text()
    assert len(text) == 100_000
    assert len(set(text)) == 1


LEAVE_PARTIALS = """
import os, signal, sys
from swad.util.files import atomic_write
with atomic_write(sys.argv[1]) as partial:
    # As safetensors writes, which renames its own temporary file.
    (partial.parent / ".tmpaB3dE9").write_bytes(b"half a model")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "swad[1].safetensors"
    start_python(LEAVE_PARTIALS, str(path)).communicate()
    others = [
        tmp_path / "movie.partial",
        tmp_path / f"{path.name}.123-0a1b2c3d.partial",  # of an earlier version, perhaps on another machine
        tmp_path / f"best.safetensors.{os.getpid()}-0a1b2c3d0a1b2c3d.partial",
    ]
    for other in others:
        other.write_bytes(b"half a file")
    assert len(list(tmp_path.iterdir())) == 1 + len(others)
    write_text(path, "whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_what_a_living_writer_is_writing_stays(tmp_path: Path) -> None:
    path = tmp_path / "swad.safetensors"
    code = LEAVE_PARTIALS.replace("os.kill(os.getpid(), signal.SIGKILL)", "print('ready', flush=True); input()")
    process = start_python(code, str(path), stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    write_text(path, "of this process")
    process.communicate("\n")
    assert process.returncode == 0
    assert path.read_bytes() != b"of this process"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("replace", [False, True])
def test_a_lock_whose_file_is_gone_is_not_held(tmp_path: Path, replace: bool) -> None:
    path = tmp_path / "run.lock"
    with FileLock(path) as lock:
        lock.require_held()
        path.write_text("the same file with other content\n")
        lock.require_held()
        path.unlink()
        if replace:
            path.touch()
        with pytest.raises(FileLockLostError, match=r"run.lock was removed or replaced"):
            lock.require_held()


def test_a_lock_that_was_removed_while_waiting_is_taken_on_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"
    first = FileLock(path)

    def replace() -> None:
        path.unlink(missing_ok=True)
        first.release()

    with FileLock(path, on_wait=replace) as second:
        second.require_held()
        with pytest.raises(FileLockedError):
            FileLock(path)


def test_a_lock_is_held_where_files_have_no_lasting_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "samestat", lambda first, second: False)
    with FileLock(tmp_path / "run.lock") as lock:
        lock.require_held()


@pytest.mark.parametrize("message", ["Error while serializing: os error 28", "PytorchStreamWriter failed writing file"])
def test_disk_errors_of_other_packages_become_os_errors(tmp_path: Path, message: str) -> None:
    with pytest.raises(OSError, match=r"weights.safetensors"), atomic_write(tmp_path / "weights.safetensors"):
        raise RuntimeError(message)


def test_an_error_of_the_disk_names_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "unlink", read_only)  # removing the temporary file fails too, and must not hide the error
    message = r"No space left on device: '.*/table.txt'"
    with pytest.raises(OSError, match=message) as caught, atomic_write(tmp_path / "table.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")  # as writing to an open file raises it
    assert disk_advice(caught.value) == "free disk space, then run the same command again"
    with pytest.raises(TimeoutError, match=r"^timed out$"), atomic_write(tmp_path / "table.txt"):
        raise TimeoutError("timed out")  # of a download


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), atomic_write(tmp_path / "weights.safetensors"):
        raise RuntimeError("shapes differ")


# --- locks ----------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from swad.util.files import FileLock
lock = FileLock(sys.argv[1])
print("ready", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_by_the_owner_s_id_and_admitted_after_its_death(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    process = start_python(HOLD, str(path))
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(FileLockedError, match=f"is locked by process {process.pid}") as caught:
            FileLock(path)
        assert caught.value.owner == str(process.pid)
    finally:
        process.kill()
        process.communicate()
    FileLock(path).release()


def test_a_second_lock_in_the_same_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with FileLock(path):
        path.read_text()  # closing another descriptor of the file must not release the lock
        with pytest.raises(FileLockedError, match=f"process {os.getpid()}"):
            FileLock(path)
    lock = FileLock(path)
    lock.release()
    lock.release()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = """
import os, sys, time
from swad.util.files import FileLock
lock = FileLock(sys.argv[1])
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    os.close(1), os.close(2)
time.sleep(60)
"""
    path = tmp_path / "run.lock"
    process = start_python(code, str(path))
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        FileLock(path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_readers_share_a_lock_and_keep_writers_out(tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"
    with FileLock(path, shared=True), FileLock(path, shared=True), pytest.raises(FileLockedError):
        FileLock(path)
    FileLock(path).release()


def test_on_wait_is_called_before_waiting(tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"
    lock = FileLock(path)
    FileLock(path, on_wait=lock.release).release()


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="cannot lock .*No locks available.*only one process writes"):
        FileLock(tmp_path / "run.lock").release()


def test_looking_at_a_lock_never_makes_its_owner_fail(tmp_path):
    path = tmp_path / "run.lock"
    probe = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(probe, fcntl.LOCK_SH)  # as `is_locked` holds it for a moment
    with ThreadPoolExecutor(1) as pool:
        owner = pool.submit(FileLock, path)
        time.sleep(0.005)
        os.close(probe)
        with owner.result():
            assert is_locked(path)
    assert not is_locked(path)
    assert not is_locked(tmp_path / "no.lock")


def test_without_locks_a_directory_that_changed_just_now_is_in_use(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = tmp_path / "run.lock"
    lock.touch()
    assert is_locked(lock)
    os.utime(lock, (0, 0))
    assert not is_locked(lock)
