import gzip
import os
import random
from pathlib import Path

import pytest

from swad.testbed.results.measurement_rows import FLATNESS, SURFACE, RowFile, last_shown, read_rows
from swad.testbed.results.records import RecordError


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    with RowFile(tmp_path, FLATNESS) as file:
        key = file.add_settings({"radii": (1.0, 2.0)})
        file.append({"key": key, "kind": "row", "radii": (1.0, 2.0)})
        written = file.rows
    assert read_rows(tmp_path, FLATNESS) == written
    assert written[-1]["radii"] == [1.0, 2.0]


def test_the_same_settings_are_stored_once(tmp_path: Path) -> None:
    with RowFile(tmp_path, FLATNESS) as file:
        keys = [file.add_settings(settings) for settings in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 2})]
        assert len(file.rows) == 2
    assert keys[0] == keys[1] != keys[2]


def test_the_measurement_requested_last_is_shown(tmp_path: Path) -> None:
    with RowFile(tmp_path, FLATNESS) as file:
        keys = [file.add_settings({"images": images}) for images in (10, 20)]
        for key in keys:
            file.append({"key": key, "kind": "row", "mean": 1.0})
            file.mark_shown(key)
        file.mark_shown(keys[0])
        count = len(file.rows)
        file.mark_shown(keys[0])  # it is shown already
        assert len(file.rows) == count
        file.mark_shown(file.add_settings({"images": 30}))  # without rows
    shown = last_shown(read_rows(tmp_path, FLATNESS), "row")
    assert shown is not None
    assert shown[0]["images"] == 10
    assert [row["key"] for row in shown[1]] == [keys[0]]
    assert last_shown(read_rows(tmp_path, FLATNESS), "curvature") is None


def test_a_torn_line_is_ignored_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    with RowFile(tmp_path, FLATNESS) as file:
        file.append({"key": "a", "kind": "row"})
    with open(tmp_path / FLATNESS, "ab") as torn:
        torn.write(b'{"v": 1, "key": "half')
    assert len(read_rows(tmp_path, FLATNESS)) == 1
    with RowFile(tmp_path, FLATNESS) as file:
        file.append({"key": "b", "kind": "row"})
    assert [row["key"] for row in read_rows(tmp_path, FLATNESS)] == ["a", "b"]


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with (
        RowFile(tmp_path, FLATNESS),
        pytest.raises(RecordError, match=f"is being written by process {os.getpid()}: wait"),
    ):
        RowFile(tmp_path, SURFACE)
    RowFile(tmp_path, SURFACE).close()


def test_damaged_and_newer_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / FLATNESS
    path.write_text('{"v": 1, "kind": "row"}\n')
    with pytest.raises(RecordError, match="line 1 is damaged: remove this line, or the file, and measure again"):
        read_rows(tmp_path, FLATNESS)
    with pytest.raises(RecordError, match="damaged"):
        RowFile(tmp_path, FLATNESS)
    path.write_text('{"v": 99, "kind": "row", "key": "a"}\n')
    with pytest.raises(RecordError, match="written by a newer swad"):
        read_rows(tmp_path, FLATNESS)
    assert read_rows(tmp_path, SURFACE) == []


def test_compressed_rows_are_read_and_not_added_to(tmp_path: Path) -> None:
    with RowFile(tmp_path, FLATNESS) as file:
        key = file.add_settings({"radii": [1.0]})
    path = tmp_path / FLATNESS
    compressed = gzip.compress(path.read_bytes())
    path.unlink()
    (tmp_path / f"{FLATNESS}.gz").write_bytes(compressed)
    assert read_rows(tmp_path, FLATNESS) == [{"key": key, "kind": "settings", "radii": [1.0]}]
    with pytest.raises(RecordError, match=r"added to the compressed .*flatness.jsonl.gz: gunzip it first"):
        RowFile(tmp_path, FLATNESS)
    assert not path.exists()
    for damaged in (compressed[:-9], compressed[:12] + b"?" * 20, b"no gzip"):
        (tmp_path / f"{FLATNESS}.gz").write_bytes(damaged)
        with pytest.raises(RecordError, match=r"flatness.jsonl.gz \(damaged\): remove it and measure again"):
            read_rows(tmp_path, FLATNESS)
    path.touch()
    with RowFile(tmp_path, FLATNESS) as file:
        assert file.add_settings({"radii": [1.0]}) == key, "the file itself counts, as in reading"
    assert len(read_rows(tmp_path, FLATNESS)) == 1


def test_a_number_that_json_cannot_express_must_be_text(tmp_path: Path) -> None:
    with RowFile(tmp_path, FLATNESS) as file, pytest.raises(ValueError, match="JSON"):
        file.append({"kind": "row", "key": "a", "mean": float("inf")})
    assert read_rows(tmp_path, FLATNESS) == []


def test_no_flipped_bit_of_a_row_is_read_as_another_one(tmp_path: Path) -> None:
    with RowFile(tmp_path, FLATNESS) as file:
        key = file.add_settings({"radii": [1.0]})
        file.append({"key": key, "kind": "row", "weights": "swad", "radius": 1.0, "mean": 0.25})
    path, rng = tmp_path / FLATNESS, random.Random(0)
    content, rows, refused = path.read_bytes(), read_rows(tmp_path, FLATNESS), 0
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content) - 1)] ^= 1 << rng.randrange(8)  # without the last line ending it is torn
        path.write_bytes(damaged)
        try:
            assert read_rows(tmp_path, FLATNESS) == rows, damaged
        except RecordError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 250


def test_rows_of_earlier_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / FLATNESS).write_text('{"v": 1, "kind": "row", "key": "a", "mean": 0.25}\n')
    with RowFile(tmp_path, FLATNESS) as file:
        file.append({"kind": "row", "key": "a", "mean": 0.5})
    assert [row["mean"] for row in read_rows(tmp_path, FLATNESS)] == [0.25, 0.5]
