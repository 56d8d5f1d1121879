"""The same job on several processes: Spark's own small cluster, and a standalone master with two workers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.job import audit
from tests.audit.mutilated import exported, of

pytestmark = pytest.mark.full
_HOME = Path(pyspark.__file__).parent
_SECONDS = 300.0
_ENVIRONMENT = {**os.environ, "SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """Journals that lack a segment, so that there are findings."""
    found = exported(tmp_path)
    of(found, "group")[1].unlink()
    return found


def by_command(journals: Path, out: Path, master: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "reliamsg", "audit", str(journals), "--out", str(out), "--json"]
    done = subprocess.run(
        [*command, "--master", master],
        capture_output=True, text=True, timeout=_SECONDS, env=_ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def without_time(verdict: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in verdict.items() if name != "seconds"}


@contextmanager
def started(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Spark daemon in the foreground, stopped afterwards."""
    command = [str(_HOME / "bin" / "spark-class"), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=_ENVIRONMENT, cwd=log.parent
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(log: Path, pattern: str, times: int, processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + 120
    while len(re.findall(pattern, log.read_text(errors="replace"))) < times:
        assert all(process.poll() is None for process in processes), log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.timeout(900)
def test_local_cluster(spark: SparkSession, journals: Path, tmp_path: Path) -> None:
    here = audit(spark, journals)
    there = by_command(journals, tmp_path / "out", "local-cluster[2,1,1024]")
    assert without_time(there) == without_time(here)


@pytest.mark.timeout(900)
def test_a_standalone_master_and_two_workers(spark: SparkSession, journals: Path, tmp_path: Path) -> None:
    here = audit(spark, journals)
    port = free_port()
    url, log = f"spark://127.0.0.1:{port}", tmp_path / "master.log"
    deploy = "org.apache.spark.deploy"
    master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    worker = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", url)
    with (
        started(log, f"{deploy}.master.Master", *master) as first,
        started(
            tmp_path / "w1.log", f"{deploy}.worker.Worker", *worker, "-d", str(tmp_path / "w1")
        ) as second,
        started(tmp_path / "w2.log", f"{deploy}.worker.Worker", *worker, "-d", str(tmp_path / "w2")) as third,
    ):
        wait_for(log, "Registering worker", 2, [first, second, third])
        there = by_command(journals, tmp_path / "out", url)
    assert without_time(there) == without_time(here)
