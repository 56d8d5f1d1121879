"""Single SQLite commits with fsync, with a pause before each: WAL, ``synchronous=FULL``, a row of 100 bytes.

The settings are those of an outbox; the result is the median in µs.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measured import WORK, say

PAUSE_S = 0.005


def main(count: int) -> None:
    took = []
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as place:
        database = sqlite3.connect(Path(place) / "bare.db", isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB)")
        body = bytes(100)
        for _ in range(count):
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO rows (body) VALUES (?)", (body,))
            database.execute("COMMIT")
            took.append(time.perf_counter() - start)
        database.close()
    say(statistics.median(took) * 1e6, count)


if __name__ == "__main__":
    main(int(sys.argv[1]))
