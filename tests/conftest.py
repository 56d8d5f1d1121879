"""Fixtures that all tests share."""

pytest_plugins = ["tests.options", "tests.chance", "tests.brokers", "tests.audited", "tests.spark"]
