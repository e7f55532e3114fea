"""The file that says why a run failed."""

from __future__ import annotations

import pytest

from swad.testbed.results.failures import FAILURE, LINES, STARTS, read_failure, remove_failure, write_failure


def test_attempts_count_until_success(tmp_path):
    for attempts in (1, 2, 3):
        assert write_failure(tmp_path / "run", "no\nmemory").attempts == attempts
    assert read_failure(tmp_path / "run").error == "no memory"
    (tmp_path / "run" / STARTS).touch()
    remove_failure(tmp_path / "run")
    remove_failure(tmp_path / "run")
    assert not (tmp_path / "run" / STARTS).exists()
    assert read_failure(tmp_path / "run") is None
    assert write_failure(tmp_path / "run", "again").attempts == 1


def test_the_last_lines_are_kept(tmp_path):
    write_failure(tmp_path, "error", [str(i) for i in range(100)])
    assert read_failure(tmp_path).lines == tuple(str(i) for i in range(100 - LINES, 100))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"lines": 3}', "\udcff"])
def test_a_damaged_file_is_still_a_failure(tmp_path, content):
    (tmp_path / FAILURE).write_bytes(content.encode(errors="surrogateescape"))
    assert "cannot be read" in read_failure(tmp_path).error
    assert write_failure(tmp_path, "error").attempts == 2


def test_no_directory_is_no_failure(tmp_path):
    assert read_failure(tmp_path / "missing") is None
