"""Where a Spark session is made, and suited to its work; nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["LITTLE", "are_few", "make_session", "suit", "suited"]

_SETTINGS = {
    # Dates and times are compared with what clients wrote, which is UTC.
    "spark.sql.session.timeZone": "UTC",
    # An overflow or a bad cast is a mistake of ours, and must not become a NULL that nobody sees.
    "spark.sql.ansi.enabled": "true",
    # Spark works out for every step what must be so of its columns, to filter by that elsewhere. Here it filters
    # nothing away, and with as many conditions as a step has it takes more than half of the time that plans take.
    "spark.sql.constraintPropagation.enabled": "false",
    # Segments are small. Reckoned as 4 MB each, as by default, every few dozen make a partition, and that a task in
    # each step that reads rows.
    "spark.sql.files.openCostInBytes": "65536",
}
_APPLICATION_SETTINGS = {
    # Remembering for each expression which line of Python it came from doubles the time that plans take.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
LITTLE = 300_000
"""Up to so many journal rows, an audit's time is what it takes to plan it and to start its tasks."""
_FOR_LITTLE = {
    # Compiling code for each step takes longer than having the few rows interpreted.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # Each plan is written out for whoever looks at Spark's page.
    "spark.sql.ui.explainMode": "simple",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL_SETTINGS = {
    # One machine: as many tasks as it can run at once, and no web server that nobody looks at.
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Plans are many small objects for a short time: with one or two processors, Java's default collector takes a
    # fifth of the whole audit. Only seen when Java is started by this session.
    "spark.driver.memory": "2g",
    _JAVA_OPTIONS: "-XX:+UseParallelGC",
}
_FEW_BYTES = 100_000_000
"""What LITTLE rows are in segments, or so."""
_FOR_FEW = {
    # Half of the processor time of a first, little audit is the work of the compiler for code that runs for long.
    _JAVA_OPTIONS: f"{_LOCAL_SETTINGS[_JAVA_OPTIONS]} -XX:TieredStopAtLevel=1",
}


_CLASSES = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")
"""What PySpark calls by these names to make columns and lists of them."""


class _Known:
    """A Java class whose methods are looked up once.

    PySpark asks Java for the class and for the method before each call. That is a third of all that a little audit asks
    of Java, and most of its time is what it takes to put the plans together.
    """

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not name.startswith("_"):
            setattr(self, name, found)
        return found


def make_session(
    master: str | None = None,
    *,
    journals: str | os.PathLike[str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one at `master`, such as ``local[*]`` (default) or ``spark://host:7077``.

    Under ``spark-submit`` the master is the one given there, unless `master` says another. `journals`: what the session
    is made for, where that is known; Java starts otherwise where they are few. `settings` are Spark's own and come
    last. Raises what Spark raises when it can't start, for lack of Java say.
    """
    builder = SparkSession.builder.appName("reliamsg audit")
    for name, value in (_SETTINGS | _APPLICATION_SETTINGS).items():
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.master(master)
    if master is None or master.startswith("local"):
        of_java = _FOR_FEW if journals is not None and are_few(journals) else {}
        for name, value in (_LOCAL_SETTINGS | of_java).items():
            builder = builder.config(name, value)
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def are_few(journals: str | os.PathLike[str]) -> bool:
    """Whether journals lie in a directory of this machine, and have about :data:`LITTLE` rows at most."""
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
        return False  # nobody knows; that one can't be read is for the audit to say
    return True


def suited(spark: SparkSession) -> SparkSession:
    """A session of its own for one audit, in the same Spark application; at first with settings for little work."""
    _know_classes(spark)
    own = spark.newSession()
    for name, value in (_SETTINGS | _FOR_LITTLE).items():
        own.conf.set(name, value)
    return own


def _know_classes(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    for name in _CLASSES:
        if name not in vars(java):
            setattr(java, name, _Known(getattr(java, name)))


def suit(own: SparkSession, spark: SparkSession, rows: int) -> None:
    """Once it is known how many journal rows there are: with more than a little, work as `spark` is set to."""
    if rows > LITTLE:
        for name in _FOR_LITTLE:
            own.conf.set(name, str(spark.conf.get(name)))
