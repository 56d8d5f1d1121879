"""Journals that several tests of the audit judge, and what Spark says of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from reliamsg.verify import Chain
from tests.audit.equality import Outcome, by_spark
from tests.audit.together import all_chains


@pytest.fixture(scope="session")
def chains() -> list[Chain]:
    """All journals of :mod:`tests.audit.together`."""
    return all_chains()


@pytest.fixture(scope="session")
def judged(spark: SparkSession, chains: list[Chain]) -> Outcome:
    """What Spark says of all of them."""
    return by_spark(spark, chains)
