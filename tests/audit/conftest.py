"""One Spark session for all tests of the audit: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.session import make_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = make_session(
        "local[2]", settings={"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    )
    yield session
    session.stop()
