"""Two sizes of one test suite: small by default, and with ``--full`` the sizes that the evidence quotes.

A test with sizes uses the ``size`` fixture: ``messages = size(2_000, 60_000)``. A test that makes sense at full size
only is marked ``@pytest.mark.full``. A test that takes half a minute or more, most of it waiting, is marked
``@pytest.mark.long``: with parallel workers, each worker begins with its share of them, so that none is left for the
end.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import pytest

T = TypeVar("T")


class Size(Protocol):
    """The ``size`` fixture."""

    def __call__(self, small: T, large: T, /) -> T: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="all tests, at full sizes (at most an hour)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: makes sense at full size only; runs with --full")
    config.addinivalue_line("markers", "long: half a minute or more, most of it waiting; begins first")
    config.addinivalue_line(
        "markers", "integrations: what make test has no time for; runs with make test-integrations"
    )
    config.addinivalue_line("markers", "last: needs what other tests leave; ends the run")


@pytest.hookimpl(trylast=True)  # after other plugins have selected and sorted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        left_out = [item for item in items if item.get_closest_marker("full")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker("full")]
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = _long_first(items, workers)


def _long_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Split as ``--dist worksteal`` distributes them first, each part beginning with its share of the long tests and of
    those that another test waits for."""
    long = [item for item in items if _is_first(item)]
    others = [item for item in items if not _is_first(item)]
    ordered: list[pytest.Item] = []
    for number in range(workers):
        size = (len(items) - len(ordered)) // (workers - number)
        share = long[number::workers]
        more = max(0, size - len(share))
        ordered += [*share, *others[:more]]
        del others[:more]
    return ordered


def _is_first(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("long", "audited"))


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether this run is at full sizes."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def size(full: bool) -> Size:
    """Choose between the small and the full size of something."""

    def choose(small: T, large: T) -> T:
        return large if full else small

    return choose
