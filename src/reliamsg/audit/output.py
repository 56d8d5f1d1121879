"""The output of an audit: a local directory with tables, ``verdict.json`` and ``report.html``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import RDD
from pyspark.sql import SparkSession

from reliamsg.audit.changes import read_earlier
from reliamsg.audit.clients import Clients
from reliamsg.audit.fates import Fate
from reliamsg.audit.fold import StreamName
from reliamsg.audit.found import Finding
from reliamsg.audit.lineage import Histories
from reliamsg.audit.tasks import Summary
from reliamsg.audit.verdict import QUANTILES, SITE_COUNTS, about_evidence
from reliamsg.errors import ConfigError

__all__ = ["Output"]

_TABLES = ("findings", "ranges", "sites", "latency", "chains")
_FILES = ("verdict.json", "report.html")
_NEXT = ".next"
"""The directory of an output that is not complete yet."""
_EARLIER = ".verdict.json.earlier"
"""The verdict of the audit before, while its output is being replaced."""
FINDINGS = (
    "kind string, producer string, topic string, part int, grp string, site string, epoch bigint, first bigint,"
    " last bigint, place string, text string"
)
RANGES = (
    "grp string, producer string, topic string, part int, epoch bigint, first bigint, last bigint, fate string,"
    " why string, place string, hop string, sites array<string>, accounted boolean, handed boolean, pending boolean,"
    " unacknowledged boolean, late boolean, unverifiable boolean"
)
CHAINS = "role string, client string, chain string, rank int, broken boolean, finished boolean"


class Output:
    """A directory with the output of one audit.

    Raises :class:`ConfigError` if it contains other files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.place: str = os.fspath(path)
        """The directory, as given."""
        self._path = Path(path).absolute()
        if self._path.exists() and not self._path.is_dir():
            raise ConfigError(f"{path}: there is a file where the output should go")
        strange = sorted(each.name for each in self._path.glob("*") if not _ours(each))
        if strange:
            raise ConfigError(
                f"{path}: holds other things than an audit's output ({strange[0]}): name another directory"
            )

    def begin(self) -> None:
        """Create the directory. The output of an earlier audit stays until this one is complete."""
        (self._path / _NEXT).mkdir(parents=True, exist_ok=True)

    def finish(
        self,
        spark: SparkSession,
        verdict: Mapping[str, Any],
        total: Summary,
        clients: Clients,
        known: Histories,
        judged: RDD[Any],
    ) -> None:
        """Write the tables, the report and the verdict, and put them in the place of earlier ones.

        `judged`: every finding of a stream, every range of messages, and summaries.
        """
        from reliamsg.audit import report  # requires jinja2, which a verdict does not

        evidence = about_evidence(total, clients, known)
        findings = judged.filter(_is_finding).union(spark.sparkContext.parallelize(evidence, 1))
        self._table(spark, "findings", findings.map(_finding_row), FINDINGS)
        self._table(spark, "ranges", judged.filter(_is_range).map(_range_row), RANGES)
        sites = [
            (site, *(counts[name] for name in SITE_COUNTS)) for site, counts in sorted(total.sites.items())
        ]
        self._table(
            spark, "sites", sites, f"site string, {', '.join(f'{name} bigint' for name in SITE_COUNTS)}"
        )
        latencies = [
            (hop, *(values[name] for name in QUANTILES)) for hop, values in verdict["latency"].items()
        ]
        self._table(
            spark, "latency", latencies, f"hop string, {', '.join(f'{name} double' for name in QUANTILES)}"
        )
        journals = [
            (each.role, each.client, each.name, each.rank, each.broken, each.finished)
            for each in clients.context.journals.values()
        ]
        self._table(spark, "chains", journals, CHAINS)
        earlier = read_earlier(self._path / "verdict.json") or read_earlier(self._path / _EARLIER)
        sums = report.data(total, evidence, clients, known.journals, verdict, earlier)
        report.write(self._path / _NEXT / "report.html", verdict, sums | {"out": self.place})
        (self._path / _NEXT / "verdict.json").write_text(
            json.dumps(verdict, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        self._put_in_place()

    def _put_in_place(self) -> None:
        """For this moment there is no verdict: one in its place means that the output is complete."""
        if (self._path / "verdict.json").exists():
            (self._path / "verdict.json").replace(self._path / _EARLIER)
        for name in _TABLES:
            if (self._path / name).exists():
                shutil.rmtree(self._path / name)
        for name in (*_TABLES, "report.html", "verdict.json"):
            (self._path / _NEXT / name).replace(self._path / name)
        (self._path / _EARLIER).unlink(missing_ok=True)
        shutil.rmtree(self._path / _NEXT)

    def _table(self, spark: SparkSession, name: str, rows: Any, schema: str) -> None:
        """Write a table as Parquet."""
        frame = spark.createDataFrame(rows, schema)
        frame.write.mode("overwrite").parquet(f"file://{self._path / _NEXT / name}")


def _is_finding(each: object) -> bool:
    return isinstance(each, Finding)


def _is_range(each: object) -> bool:
    return isinstance(each, tuple)


def _finding_row(each: Finding) -> tuple[Any, ...]:
    producer, topic, part = each.stream or (None, None, None)
    texts = (text or None for text in (each.place, each.text))
    return (
        each.kind, producer, topic, part, each.group or None, each.site or None, each.epoch, each.first, each.last,
        *texts,
    )  # fmt: skip


def _range_row(each: tuple[StreamName, str, int, Fate]) -> tuple[Any, ...]:
    stream, group, epoch, fate = each
    return (
        group, *stream, epoch, fate.first, fate.last, fate.fate, fate.why or None, fate.place or None, fate.hop or None,
        list(fate.sites), fate.accounted, fate.handed, fate.pending, "unacknowledged" in fate.claims, fate.late,
        fate.unverifiable,
    )  # fmt: skip


def _ours(path: Path) -> bool:
    if path.name in (*_TABLES, _NEXT):
        return path.is_dir()
    # Temporary files of an interrupted audit.
    return path.name in _FILES or path.name.startswith(tuple(f".{name}." for name in _FILES))
