"""Journals that several tests of the audit judge, and what Spark says of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from reliamsg.checker import Chain
from tests.audit.equality import Outcome, by_spark


@pytest.fixture(scope="session")
def chains() -> list[Chain]:
    """All journals of :mod:`tests.audit.together`."""
    # Here, since what is imported there has Hypothesis' settings, which are made after this file is read.
    from tests.audit.together import all_chains

    return all_chains()


@pytest.fixture(scope="session")
def judged(spark: SparkSession, chains: list[Chain]) -> Outcome:
    """What Spark says of all of them."""
    return by_spark(spark, chains)
