"""The output of an audit: a local directory with tables, ``verdict.json`` and ``report.html``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from reliamsg.errors import ConfigError

__all__ = ["Output"]

_TABLES = ("findings", "ranges", "sites", "latency", "chains")
_FILES = ("verdict.json", "report.html")


class Output:
    """A directory with the output of one audit.

    Raises :class:`ConfigError` if it contains other files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        if self._path.exists() and not self._path.is_dir():
            raise ConfigError(f"{path}: there is a file where the output should go")
        strange = sorted(each.name for each in self._path.glob("*") if not _ours(each))
        if strange:
            raise ConfigError(
                f"{path}: holds other things than an audit's output ({strange[0]}): name another directory"
            )

    def clear(self) -> None:
        """Create the directory, and remove the output of an earlier audit, its verdict first."""
        self._path.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (self._path / name).unlink(missing_ok=True)
        for name in _TABLES:
            if (self._path / name).exists():
                shutil.rmtree(self._path / name)

    def table(self, name: str, frame: DataFrame) -> None:
        """Write a table as Parquet."""
        frame.write.mode("overwrite").parquet(f"file://{self._path / name}")

    def finish(self, verdict: Mapping[str, Any], rows: DataFrame, findings: DataFrame) -> None:
        """Write the report, then the verdict: an existing verdict means that the output is complete."""
        from reliamsg.audit import report  # requires jinja2 and plotly, which a verdict does not

        report.write(self._path / "report.html", verdict, report.data(rows, findings, verdict))
        aside = self._path / f".verdict.json.{os.getpid()}"
        aside.write_text(json.dumps(verdict, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        aside.replace(self._path / "verdict.json")


def _ours(path: Path) -> bool:
    if path.name in _TABLES:
        return path.is_dir()
    # Temporary files of an interrupted audit.
    return path.name in _FILES or path.name.startswith(tuple(f".{name}." for name in _FILES))
