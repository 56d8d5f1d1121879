"""One Spark session for all tests of the audit: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.session import make_session, suited
from reliamsg.verify import Chain
from tests.audit.equality import Outcome, by_spark
from tests.audit.together import all_chains


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = make_session("local[2]", settings={"spark.ui.showConsoleProgress": "false"})
    session.sparkContext.setLogLevel("ERROR")
    # As a small audit sets itself; steps that are tested alone get no session of their own.
    yield suited(session)
    session.stop()


@pytest.fixture(scope="session")
def chains() -> list[Chain]:
    """All journals of :mod:`tests.audit.together`."""
    return all_chains()


@pytest.fixture(scope="session")
def judged(spark: SparkSession, chains: list[Chain]) -> Outcome:
    """What Spark says of all of them."""
    return by_spark(spark, chains)
