"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator

import pytest

from reliamsg.transport.memory import registry

pytest_plugins = ["tests.options", "tests.chance", "tests.brokers", "tests.audited", "tests.spark"]


def pytest_configure() -> None:
    """Prepare for the processes that tests start. A run in the background of a shell, or below ``nohup``, ignores some
    signals, and so would they."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ["PYTHONFAULTHANDLER"] = "1"  # see tests/children.py


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What collection leaves, half a gigabyte, lives as long as the process: garbage collections pass over it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def networks_in_memory_are_forgotten() -> Iterator[None]:
    """Else everything that a test connected to one stays in memory, with its files open: clients of brokers that use
    ``select()`` fail as soon as there are a thousand."""
    before = set(registry._hosts)
    yield
    registry.unregister(sorted(registry._hosts.keys() - before))


@pytest.fixture(autouse=True)
def logging_is_restored() -> Iterator[None]:
    """Else a command that a test calls in this process decides which records the tests after it can see."""
    logger = logging.getLogger("reliamsg")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
