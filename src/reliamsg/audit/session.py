"""Creates and configures Spark sessions; no other module does."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

__all__ = ["are_few", "make_session"]

_SETTINGS = {
    # Dates and times are compared with those of clients, which use UTC.
    "spark.sql.session.timeZone": "UTC",
    # An overflow or a bad cast is a bug, and must not silently become NULL.
    "spark.sql.ansi.enabled": "true",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL_SETTINGS = {
    # One machine: a task per processor, and no web server.
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # With one or two processors, Java's default collector takes more time than this one. Only effective if this session
    # starts Java.
    "spark.driver.memory": "2g",
    _JAVA_OPTIONS: "-XX:+UseParallelGC",
}
_FEW_BYTES = 100_000_000
"""Up to this size of segments, starting tasks dominates the time of an audit."""
_FOR_FEW = {
    # Half of the processor time of a first, small audit is spent in the optimizing compiler for long-running code.
    _JAVA_OPTIONS: f"{_LOCAL_SETTINGS[_JAVA_OPTIONS]} -XX:TieredStopAtLevel=1",
}


def make_session(
    master: str | None = None,
    *,
    journals: str | os.PathLike[str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one at `master`, such as ``local[*]`` (default) or ``spark://host:7077``.

    With ``spark-submit`` its master is used, unless `master` is given. `journals`: the journals to audit, if known;
    Java is started with other options for small ones. `settings` are Spark settings, and take precedence. Raises
    Spark's exceptions if it can't start, for example without Java.
    """
    builder = SparkSession.builder.appName("reliamsg audit")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.master(master)
    if master is None or master.startswith("local"):
        # Tasks run in this installation, not in whatever "python3" is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        of_java = _FOR_FEW if journals is not None and are_few(journals) else {}
        for name, value in (_LOCAL_SETTINGS | of_java).items():
            builder = builder.config(name, value)
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def are_few(journals: str | os.PathLike[str]) -> bool:
    """Whether journals are in a local directory, and have 100 MB at most."""
    if not os.path.isdir(journals):
        return False
    size = 0
    try:
        for place, _, names in os.walk(journals):
            size += sum(
                os.path.getsize(os.path.join(place, name)) for name in names if name.endswith(".ndjson")
            )
            if size > _FEW_BYTES:
                return False
    except OSError:
        return False  # unknown; the audit reports unreadable files
    return True
