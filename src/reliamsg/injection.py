"""What tests put into producers and consumers; :mod:`reliamsg.testing` has :func:`inject` for applications."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from reliamsg.arguments import check_callback
from reliamsg.transport.base import Transports, check_transports

__all__ = ["Injected", "inject", "injected"]


@dataclass(frozen=True)
class Injected:
    """What a client that is constructed now takes; None where it takes what it always does."""

    transports: Transports | None = None
    probe: Callable[[str], None] | None = None


_NOTHING = Injected()
_injected: ContextVar[Injected] = ContextVar("reliamsg.injected", default=_NOTHING)


def injected() -> Injected:
    """What is injected now, in this thread or task. Constructors of clients ask once."""
    return _injected.get()


@contextlib.contextmanager
def inject(
    *, transports: Transports | None = None, probe: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Have every producer and consumer that is constructed in this block use `transports` or call `probe`.

    ::

        with inject(probe=points.append):
            producer = Producer("p", network.sites, outbox=path)

    `transports` opens the connections, instead of those that the sites' URLs ask for: an object with the methods
    ``open_sender`` and ``open_receiver`` of the module :mod:`reliamsg.transport.factory`, such as one that wraps what
    that module opens. `probe` is called with the name of a point that was just passed, on whichever thread passes it.
    Points of a producer: ``committed``, ``sent``, ``confirmed``, ``cursor``, ``released``, ``named``, ``removed``,
    ``offered``, ``next_epoch``, ``renumbered`` and ``fenced``; of a consumer: ``handled``, ``spill``, ``spilled``,
    ``position``, ``noted`` and ``acknowledged``; of both, those of the
    :class:`~reliamsg.export.exporter.Exporter`.

    Only the thread (or asyncio task) that entered the block sees this: a client that another thread constructs is not
    affected, even if that thread was started in the block. A constructor reads it once, so a client keeps what it got
    after the block ends, on all of its threads. Blocks can be nested; an inner one replaces only what it is given.

    Raises :class:`~reliamsg.errors.ConfigError` for arguments that can't be used.
    """
    check_transports(transports)
    check_callback("probe", probe)
    outer = _injected.get()
    token = _injected.set(
        Injected(
            outer.transports if transports is None else transports, outer.probe if probe is None else probe
        )
    )
    try:
        yield
    finally:
        _injected.reset(token)
