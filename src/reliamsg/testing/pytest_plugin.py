"""Fixtures for tests with brokers in memory, and the marker ``reliamsg_simulate``.

pytest loads this plugin by itself where reliamsg is installed. Without automatic loading, use
``pytest_plugins = ["reliamsg.testing.pytest_plugin"]`` in a ``conftest.py``.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Everything else is imported on demand: this is loaded in every run of pytest.
if TYPE_CHECKING:
    from reliamsg.config import Site
    from reliamsg.testing import MemoryNetwork, Replay, Simulation

__all__ = ["memory_consumer", "memory_network", "memory_producer", "memory_sites", "simulation"]

MARKER = "reliamsg_simulate"
SEEDS = 200
MESSAGES = 30


@pytest.fixture
def memory_network() -> Iterator[MemoryNetwork]:
    """Two brokers in memory, ``dc1`` and ``dc2``, that fail on demand: ``memory_network["dc1"].down()``."""
    from reliamsg.testing import MemoryNetwork

    with MemoryNetwork("dc1", "dc2") as network:
        yield network


@pytest.fixture
def memory_sites(memory_network: MemoryNetwork) -> tuple[Site, ...]:
    """The sites of ``memory_network``, for producers and consumers."""
    return memory_network.sites


@pytest.fixture
def memory_producer(memory_sites: tuple[Site, ...], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens producers over ``memory_network``, each with an outbox in a temporary directory, and closes them in the
    end: ``memory_producer("shop", groups={"orders": ["billing"]})``. Further arguments are those of
    :class:`~reliamsg.Producer`."""
    from reliamsg.producer.api import Producer

    with ExitStack() as stack:

        def make(producer_id: str = "producer", **settings: Any) -> Any:
            outbox = tmp_path / f"{producer_id}.outbox.db"
            return stack.enter_context(Producer(producer_id, memory_sites, **{"outbox": outbox} | settings))

        yield make


@pytest.fixture
def memory_consumer(memory_sites: tuple[Site, ...], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens consumers over ``memory_network``, each with an inbox in a temporary directory, and closes them in the end:
    ``memory_consumer("billing", topics=["orders"])``. Further arguments are those of
    :class:`~reliamsg.Consumer`."""
    from reliamsg.consumer.api import Consumer

    with ExitStack() as stack:

        def make(group: str = "group", **settings: Any) -> Any:
            inbox = tmp_path / f"{group}.inbox.db"
            return stack.enter_context(Consumer(group, memory_sites, **{"inbox": inbox} | settings))

        yield make


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Simulation | None:
    """The :class:`~reliamsg.testing.Simulation` of a test with the marker ``reliamsg_simulate``, another one for each
    seed."""
    if request.node.get_closest_marker(MARKER) is None:
        raise pytest.UsageError(f"the fixture simulation is for tests with @pytest.mark.{MARKER}")
    return None  # for each seed, see pytest_pyfunc_call()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("reliamsg", "simulations of reliamsg")
    group.addoption("--reliamsg-seeds", metavar="A:B", help="seeds of all simulations, instead of their own")
    group.addoption(
        "--reliamsg-replay",
        metavar="SEED/MESSAGES/FAULTS",
        help="the one run that simulations repeat, with its history",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(seeds={SEEDS}, messages={MESSAGES}): run the test for each seed (a number, or a range), with a"
        " simulation in which everything fails",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is None:
        return None
    test = _with_fixtures(pyfuncitem)
    seeds, messages = _arguments(marker, pyfuncitem)
    from reliamsg.errors import ConfigError
    from reliamsg.testing.simulation import Replay, SimulationFailed, replay_one, simulate

    def command(replay: Replay) -> str:
        return f"pytest {shlex.quote(pyfuncitem.nodeid)} --reliamsg-replay {shlex.quote(str(replay))}"

    def failure() -> str | None:
        chosen = pyfuncitem.config.getoption("--reliamsg-replay", None)
        try:
            replay = Replay.parse(chosen) if chosen is not None else None
        except ConfigError as error:
            return f"--reliamsg-replay: {error}"
        try:
            if replay is None:
                simulate(test, seeds=seeds, messages=messages, command=command)
            else:
                replay_one(test, replay, command)
        except SimulationFailed as failed:
            return str(failed)
        return None

    # Not while an exception is handled: pytest would show that one, too, with the same text.
    if (text := failure()) is not None:
        pytest.fail(text, pytrace=False)
    return True


def _with_fixtures(item: pytest.Function) -> Callable[[Simulation], object]:
    """The test, with all its fixtures but the simulation."""
    names = inspect.signature(item.obj).parameters
    if "simulation" not in names or inspect.iscoroutinefunction(item.obj):
        pytest.fail(f"@pytest.mark.{MARKER} is for functions with the fixture simulation", pytrace=False)
    others = {name: item.funcargs[name] for name in names if name in item.funcargs}
    return lambda simulation: item.obj(**others | {"simulation": simulation})


def _arguments(marker: pytest.Mark, item: pytest.Function) -> tuple[int | range, int]:
    """The seeds, and how many messages."""

    def read(seeds: int | range = SEEDS, messages: int = MESSAGES) -> tuple[int | range, int]:
        return seeds, messages

    seeds, messages = read(*marker.args, **marker.kwargs)
    chosen = item.config.getoption("--reliamsg-seeds", None)
    if chosen is not None:
        first, _, last = chosen.partition(":")
        if not (first.isdecimal() and last.isdecimal()):
            pytest.fail(f"--reliamsg-seeds: {chosen!r} is not A:B, such as 0:200", pytrace=False)
        seeds = range(int(first), int(last))
    return seeds, messages
