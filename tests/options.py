"""Two sizes of one test-suite: small by default, and with ``--full`` the sizes that the evidence quotes.

A test that has sizes asks for the ``size`` fixture: ``messages = size(2_000, 60_000)``. One that makes sense
at full size only is marked ``@pytest.mark.full``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="all tests, at full sizes (at most an hour)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: makes sense at full size only; runs with --full")
    config.addinivalue_line(
        "markers", "spark: starts a Java machine, which wants all processors; not in parallel"
    )
    # Limits of time fail on a busy machine, for each example and for making the first ones; the blob is what reproduces
    # a failure.
    settings.register_profile(
        "reliamsg",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
        max_examples=1000 if config.getoption("--full") else 100,
    )
    settings.load_profile("reliamsg")


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
        item.add_marker(pytest.mark.spark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether this run is at full sizes."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def size(full: bool) -> Callable[[T, T], T]:
    """Choose between the small and the full size of something."""

    def choose(small: T, large: T) -> T:
        return large if full else small

    return choose
