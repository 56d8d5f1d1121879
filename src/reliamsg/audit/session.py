"""Where a Spark session is made; nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

__all__ = ["make_session"]

_SETTINGS = {
    # Dates and times are compared with what clients wrote, which is UTC.
    "spark.sql.session.timeZone": "UTC",
    # An overflow or a bad cast is a mistake of ours, and must not become a NULL that nobody sees.
    "spark.sql.ansi.enabled": "true",
}
_LOCAL_SETTINGS = {
    # One machine: as many tasks as it can run at once, and no web server that nobody looks at.
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def make_session(master: str | None = None, *, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The running Spark session, or a new one at `master`, such as ``local[*]`` (default) or ``spark://host:7077``.

    Under ``spark-submit`` the master is the one given there, unless `master` says another. `settings` are Spark's
    own and come last. Raises what Spark raises when it can't start, for lack of Java say.
    """
    builder = SparkSession.builder.appName("reliamsg audit")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.master(master)
    if master is None or master.startswith("local"):
        for name, value in _LOCAL_SETTINGS.items():
            builder = builder.config(name, value)
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session
