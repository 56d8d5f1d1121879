"""Fixtures for tests in event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from reliamsg.testing import MemoryNetwork

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Run[Any]]:
    """Runs a coroutine in an event loop, in which nothing may go wrong unnoticed."""
    trouble: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: trouble.append(context))
        yield runner.run
    assert not trouble


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as found:
        yield found


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return tmp_path / "inbox.db"
