"""The audit's reading of segments, in Spark: it accepts nothing that the checker does not, whatever a file contains.

Java's heap is the memory limit: it is small, and larger needs fail. Spark takes a while for each run, so each input is
turned into several files: unchanged, with headers that claim any number of rows, and with one row repeated.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reliamsg.checker.segments import check_segment
from reliamsg.store.segment import Name, SegmentError, digest_of
from tests.fuzz import seeds
from tests.fuzz.target import Target, scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AUDITED", "compare"]

HEAP_MB = 512
"""The minimum with which Spark starts; its own work takes about a third of it."""
GROWN_BYTES = 1 << 20
CLAIMS = (0, 1, 2**31 - 3, 2**31 - 1, 2**31, 2**63 - 1, -1)
"""The number of rows that a header may claim."""


def made_of(raw: bytes) -> Iterator[bytes]:
    """Segments, most of them corrupted."""
    yield raw
    first, _, rest = raw.partition(b"\n")
    try:
        header = msgspec.json.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if not isinstance(header, dict):
        return
    lines = rest.split(b"\n")
    for claim in (len(lines) - 1, *CLAIMS):
        yield msgspec.json.encode(header | {"rows": claim}) + b"\n" + rest
    times = GROWN_BYTES // max(1, len(lines[0]) + 1)
    yield msgspec.json.encode(header | {"rows": times}) + b"\n" + (lines[0] + b"\n") * times


def name_of(raw: bytes) -> str:
    """The name that matches these bytes, and the content of their header if a name can contain it."""
    found = re.search(rb'"boot":"([0-9a-f]{16})","first_lsn":([0-9]{1,18})[,}]', raw.partition(b"\n")[0])
    boot, lsn = (found[1].decode(), int(found[2])) if found else ("0" * 16, 1)
    return str(Name(boot, lsn, digest_of(raw)))


def compare(spark: SparkSession, place: Path, *inputs: bytes) -> set[str]:
    """The checker must accept every file that the audit accepts. Yields the paths of files that only the checker
    accepts."""
    from reliamsg.audit.read import segments

    shutil.rmtree(place, ignore_errors=True)
    expected: dict[str, int | None] = {}
    files = [(name_of(data), data) for raw in inputs for data in dict.fromkeys(made_of(raw))]
    files += [(str(Name("0" * 16, 10**19 - 1, digest_of(raw))), raw) for raw in inputs]
    for number, (name, data) in enumerate(files):
        path = place / str(number) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        try:
            expected[str(path)] = len(check_segment(path.name, data).rows)
        except SegmentError:
            expected[str(path)] = None
    found = {
        row["path"]: None if row["problem"] else row["rows"]
        for row in segments(spark, place).selectExpr("path", "problem", "size(lines) AS rows").collect()
    }
    assert found.keys() == expected.keys()
    # Of a duplicate field the checker takes the last; it accepts everything that the audit accepts.
    believed = {path: rows for path, rows in found.items() if rows is not None}
    wrong = [Path(path).read_bytes()[:2_000] for path, rows in believed.items() if expected[path] != rows]
    assert wrong == []
    return {path for path, rows in expected.items() if rows is not None and found[path] is None}


@cache
def _session() -> Any:
    from reliamsg.audit.session import make_session, separate_session

    session = make_session(
        "local[1]",
        journals=scratch(),
        settings={"spark.ui.showConsoleProgress": "false", "spark.driver.memory": f"{HEAP_MB}m"},
    )
    session.sparkContext.setLogLevel("OFF")
    return separate_session(session)


def read_segments_of_journals(raw: bytes) -> None:
    compare(_session(), scratch() / "journals", raw)


def _started() -> list[bytes]:
    """Seeds; Spark's start counts for none of them."""
    _session()
    return seeds.segments()


AUDITED = (Target("audit-segments", read_segments_of_journals, (), _started, slow_seconds=120),)
"""Only for ``make fuzz``: Spark is too slow for thousands of inputs. `tests/audit/test_hostile_files.py` tries some."""
