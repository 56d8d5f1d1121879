"""What tests of the asynchronous clients share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliamsg.aio import Consumer, Producer
from reliamsg.testing import MemoryNetwork
from tests.patience import patient

__all__ = ["consumer", "eventually", "producer"]


def producer(network: MemoryNetwork, outbox: Path, **options: Any) -> Producer:
    options.setdefault("groups", {"orders": ["g"]})
    options.setdefault("hello_timeout", 0.0)
    return Producer("p", network.sites, outbox=outbox, **options)


def consumer(network: MemoryNetwork, inbox: Path, **options: Any) -> Consumer:
    return Consumer("g", network.sites, topics=["orders"], inbox=inbox, **options)


async def eventually(condition: Callable[[], Any], what: str = "the condition holds") -> None:
    """Wait until `condition` is true, without blocking the loop."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patient(20)
    while not condition():
        assert loop.time() < deadline, what
        await asyncio.sleep(0.005)
