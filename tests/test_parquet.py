"""Parquet files that are in memory are read by one thread."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reliamsg.parquet import ParquetBytes
from tests.children import run_child

SOURCE = Path(__file__).parent.parent / "src" / "reliamsg"
READER = """
import os, sys
from pathlib import Path
import pyarrow.parquet
from reliamsg.parquet import ParquetBytes

before = os.listdir("/proc/self/task")
file = ParquetBytes(Path(sys.argv[1]).read_bytes())
print(sum(1 for _ in file.rows("a", "b", "c")), len(os.listdir("/proc/self/task")) - len(before))
"""


def written(rows: int = 1000) -> bytes:
    columns = {"a": list(map(str, range(rows))), "b": list(range(rows)), "c": [b"c" * 100] * rows}
    file = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata({"k": "v"}), file, row_group_size=300)
    return file.getvalue()


def test_rows_of_chosen_columns() -> None:
    file = ParquetBytes(written(700))
    assert file.metadata == {b"k": b"v"}
    assert list(file.rows("b", "a"))[::233] == [(0, "0"), (233, "233"), (466, "466"), (699, "699")]
    assert file.unpacked_bytes > 700 * 8


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads by /proc")
def test_no_thread_is_started_that_could_abort_the_process_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(written())
    found = run_child([sys.executable, "-c", READER, tmp_path / "file"], check=True)
    assert found.stdout.split() == [b"1000", b"0"]


@pytest.mark.parametrize("size", [0, 3, 100, 5000])
def test_a_damaged_file_is_a_value_error(size: int) -> None:
    with pytest.raises(ValueError, match="can't be read as Parquet"):
        ParquetBytes(written()[:size])


def test_a_missing_column_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="can't be read as Parquet"):
        list(ParquetBytes(written()).rows("a", "other"))


def test_damaged_rows_are_a_value_error() -> None:
    data = bytearray(written())
    data[4:2000] = bytes(1996)
    with pytest.raises(ValueError, match="can't be read as Parquet"):
        list(ParquetBytes(bytes(data)).rows("a", "b", "c"))


def test_nothing_else_reads_them() -> None:
    readers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(each in path.read_text() for each in ("ParquetFile(", ".read_table(", ".ParquetDataset("))
    }
    assert readers == {"parquet.py"}
