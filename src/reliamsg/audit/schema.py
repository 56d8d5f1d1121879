"""The schemas of the frames between the job's steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

__all__ = ["CHAINS", "FINDINGS", "LINE", "ROWS", "driver_frame", "findings", "union"]

LINE = T.StructType(
    [
        T.StructField("lsn", T.LongType()),
        T.StructField("boot", T.StringType()),
        T.StructField("kind", T.StringType()),
        T.StructField("wall_us", T.LongType()),
        T.StructField("wall_last_us", T.LongType()),
        T.StructField("mono_us", T.LongType()),
        T.StructField("producer", T.StringType()),
        T.StructField("topic", T.StringType()),
        T.StructField("part", T.IntegerType()),
        T.StructField("epoch", T.LongType()),
        T.StructField("incarnation", T.StringType()),
        T.StructField("first", T.LongType()),
        T.StructField("last", T.LongType()),
        T.StructField("site", T.StringType()),
        T.StructField("group", T.StringType()),
        T.StructField("reason", T.StringType()),
        T.StructField("digest", T.StringType()),
        T.StructField("latency", T.MapType(T.StringType(), T.LongType())),
        T.StructField("detail", T.StringType()),
    ]
)
"""A segment's line as written; `detail` remains JSON text."""

ROWS = T.StructType(
    [
        T.StructField("role", T.StringType(), nullable=False),
        T.StructField("client", T.StringType(), nullable=False),
        T.StructField("chain", T.StringType(), nullable=False),
        T.StructField("boot", T.StringType(), nullable=False),
        T.StructField("boot_lsn", T.LongType(), nullable=False),
        T.StructField("lsn", T.LongType(), nullable=False),
        T.StructField("kind", T.StringType(), nullable=False),
        T.StructField("wall_us", T.LongType(), nullable=False),
        T.StructField("wall_last_us", T.LongType(), nullable=False),
        T.StructField("mono_us", T.LongType(), nullable=False),
        T.StructField("producer", T.StringType(), nullable=False),
        T.StructField("topic", T.StringType(), nullable=False),
        T.StructField("part", T.IntegerType(), nullable=False),
        T.StructField("epoch", T.LongType(), nullable=False),
        T.StructField("incarnation", T.StringType(), nullable=False),
        T.StructField("first", T.LongType(), nullable=False),
        T.StructField("last", T.LongType(), nullable=False),
        T.StructField("site", T.StringType(), nullable=False),
        T.StructField("grp", T.StringType(), nullable=False),
        T.StructField("reason", T.StringType(), nullable=False),
        T.StructField("digest", T.DecimalType(20, 0)),
        T.StructField("latency", T.MapType(T.IntegerType(), T.LongType())),
        T.StructField("detail", T.StringType()),
    ]
)
"""A journal's row within its chain. A chain is one history of a client's file, separate for a clone and its original;
`lsn` orders it, and each boot begins at `boot_lsn`. Missing fields are empty or 0; `incarnation` is 16 hex digits;
`first` and `last` are as journalled; `grp` is the client's name in every row of a group."""

CHAINS = T.StructType(
    [
        T.StructField("role", T.StringType(), nullable=False),
        T.StructField("client", T.StringType(), nullable=False),
        T.StructField("chain", T.StringType(), nullable=False),
        T.StructField("rank", T.IntegerType(), nullable=False),
        T.StructField("broken", T.BooleanType(), nullable=False),
        T.StructField("finished", T.BooleanType(), nullable=False),
    ]
)
"""`rank`: 1, 2, … among its client's chains, by the wall clock of the first row. `broken`: rows may be missing, so
unrecorded events may have happened. `finished`: its last boot was closed, so no rows can follow."""

FINDINGS = T.StructType(
    [
        T.StructField("kind", T.StringType(), nullable=False),
        T.StructField("producer", T.StringType()),
        T.StructField("topic", T.StringType()),
        T.StructField("part", T.IntegerType()),
        T.StructField("grp", T.StringType()),
        T.StructField("site", T.StringType()),
        T.StructField("epoch", T.LongType()),
        T.StructField("first", T.LongType()),
        T.StructField("last", T.LongType()),
        T.StructField("place", T.StringType()),
        T.StructField("text", T.StringType()),
    ]
)
"""`place`: for losses, ``prefix``, ``middle`` or ``tail`` of the messages that the group received of the stream.
`text`: details beyond the meaning of its kind, if any. Columns that a kind does not use are NULL."""


def findings(frame: DataFrame, kind: str | None = None, **columns: Column | str) -> DataFrame:
    """`frame` as findings, of one kind or of those in its column `kind`: keeps columns of :data:`FINDINGS`, and
    replaces them by `columns`."""
    chosen = []
    for field in FINDINGS.fields:
        if field.name == "kind" and kind is not None:
            value = F.lit(kind)
        elif field.name in columns:
            given = columns[field.name]
            value = F.col(given) if isinstance(given, str) else given
        elif field.name in frame.columns:
            value = F.col(field.name)
        else:
            value = F.lit(None)
        chosen.append(value.cast(field.dataType).alias(field.name))
    return frame.select(*chosen)


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """The union of frames with the same columns."""
    return reduce(DataFrame.unionByName, frames)


def driver_frame(
    spark: SparkSession, columns: Mapping[str, str], rows: Iterable[Sequence[object]]
) -> DataFrame:
    """Data of the driver as a DataFrame; `columns`: name → Spark type.

    ``createDataFrame`` would start Python processes next to each executor to read the rows, which takes seconds and
    requires Python there.
    """
    text = json.dumps([dict(zip(columns, row, strict=True)) for row in rows])
    fields = ",".join(f"{name}:{kind}" for name, kind in columns.items())
    each = F.explode(F.from_json(F.lit(text), f"array<struct<{fields}>>")).alias("each")
    return spark.range(0, 1, 1, 1).select(each).select("each.*")
