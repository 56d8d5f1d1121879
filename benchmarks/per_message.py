"""What a first attempt at an audit does: join the fates of single messages, as Spark does that best.

Every range is exploded into its messages, and one aggregation by message, the only shuffle, counts what became of each.
Streams are hashed to numbers before that, so that little is shuffled. It finds less than the audit: losses, duplicates
and phantoms, but nothing about order, contents, times or evidence.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.measured_tree import Memory
from reliamsg.audit.session import make_session

__all__ = ["main"]

_SCHEMA = (
    "kind string, producer string, topic string, part int, epoch bigint, first bigint, last bigint, site string,"
    " group string"
)
_KINDS = ("enqueued", "confirmed", "delivered", "acknowledged")


def count_fates(spark: SparkSession, place: Path) -> dict[str, int]:
    """The numbers of messages by fate."""
    rows = (
        spark.read.schema(_SCHEMA)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.ndjson")
        .json(str(place))
        .where(F.col("kind").isin(*_KINDS))
    )
    stream = F.xxhash64("producer", "topic", "part", "epoch").alias("stream")
    messages = rows.select("kind", stream, F.explode(F.sequence("first", "last")).alias("seq"))
    fates = messages.groupBy("stream", "seq").agg(
        *(F.count_if(F.col("kind") == kind).alias(kind) for kind in _KINDS)
    )
    counted = fates.agg(
        F.count_if(F.col("enqueued") > 0).alias("enqueued"),
        F.count_if(F.col("delivered") > 0).alias("delivered"),
        F.count_if((F.col("enqueued") > 0) & (F.col("delivered") == 0)).alias("lost"),
        F.count_if(F.col("delivered") > 1).alias("duplicates"),
        F.count_if(F.col("enqueued") == 0).alias("phantom"),
        F.count_if((F.col("delivered") > 0) & (F.col("acknowledged") == 0)).alias("unacknowledged"),
    )
    found = counted.first()
    assert found is not None  # an aggregation without groups has one row
    return found.asDict()


def main(place: str, processors: int) -> None:
    """In a process of its own: count, and print a line."""
    quiet = {
        "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(16 * processors),
    }  # fmt: skip
    spark = make_session(f"local[{processors}]", journals=place, settings=quiet)
    memory = Memory()
    started = time.monotonic()
    counts: dict[str, Any] = count_fates(spark, Path(place))
    seconds = time.monotonic() - started
    spark.stop()
    print(json.dumps({"seconds": round(seconds, 1), "peak_mb": memory.peak_mb, "counts": counts}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
