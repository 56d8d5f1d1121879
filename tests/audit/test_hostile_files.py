"""What is no file among journals is reported by the audit, which reads the rest."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from reliamsg.audit.read import segments
from reliamsg.store.segment import decode, encode
from tests.fuzz import seeds
from tests.test_files import HOSTILE


def test_the_audit_reads_the_rest(spark: SparkSession, tmp_path: Path) -> None:
    header, rows = decode(seeds.segments()[0])
    made = encode(header.role, header.client, rows, header.parent)
    path = tmp_path / "journals" / made.path
    path.parent.mkdir(parents=True)
    path.write_bytes(made.data)
    expected = {}
    for number, (make, said) in enumerate(HOSTILE.values()):
        name = f"{number}.ndjson"
        make(tmp_path / "journals" / name)
        expected[name] = said
    found = {row["name"]: row["problem"] for row in segments(spark, tmp_path / "journals").collect()}
    assert found.pop(path.name) is None
    assert set(found) == set(expected)
    assert all(said in found[name] for name, said in expected.items())


def test_a_directory_with_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.ndjson")
    (row,) = segments(spark, tmp_path).collect()
    assert row["problem"] == "not a file: a named pipe"
