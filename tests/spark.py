"""One Spark session for all audit tests in this process: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PLACES = ("tests/audit/", "tests/cli/", "tests/docs/")
"""The directories that ``make test`` searches for such tests: searching all takes as long as some of them."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark: works with Spark; all such tests run in one process")


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
        item.add_marker(pytest.mark.spark)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark") and not item.nodeid.startswith(_PLACES):
            raise pytest.UsageError(
                f"{item.nodeid}: 'make test' looks for tests with Spark in {_PLACES} only"
            )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from reliamsg.audit.session import make_session

    # Java options as for few journals. Most audits here are the first ones of their kind: code is not run often enough
    # to make up for its compilation, which takes a third of the time.
    few = tmp_path_factory.mktemp("journals")
    session = make_session("local[2]", journals=few, settings={"spark.ui.showConsoleProgress": "false"})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def kept_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[SparkSession]:
    """For a program in this process that makes a session and stops it: it gets the shared one, which keeps running.

    Yields the sessions that it stopped.
    """
    stopped: list[SparkSession] = []

    def stop(session: SparkSession) -> None:
        stopped.append(session)

    monkeypatch.setattr(type(spark), "stop", stop)
    return stopped
