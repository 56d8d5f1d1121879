"""Injection of test doubles into producers and consumers. Applications use :func:`inject` of
:mod:`reliamsg.testing`."""

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
    """Replacements for the client that is being constructed; None for the default."""

    transports: Transports | None = None
    probe: Callable[[str], None] | None = None


_NOTHING = Injected()
_injected: ContextVar[Injected] = ContextVar("reliamsg.injected", default=_NOTHING)


def injected() -> Injected:
    """The current replacements in this thread or task. Constructors of clients call this once."""
    return _injected.get()


@contextlib.contextmanager
def inject(
    *, transports: Transports | None = None, probe: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Make every producer and consumer that is constructed in this block use `transports` and `probe`.

    ::

        with inject(probe=points.append):
            producer = Producer("p", network.sites, outbox=path)

    `transports` opens all connections, regardless of the sites' URLs. It is an object with the functions
    ``open_sender`` and ``open_receiver`` of the module :mod:`reliamsg.transport.factory`, for example a wrapper of that
    module. `probe` is called with the name of each point when a thread passes it, on that thread.
    Points of a producer: ``committed``, ``sent``, ``confirmed``, ``cursor``, ``released``, ``named``, ``removed``,
    ``offered``, ``next_epoch``, ``renumbered`` and ``fenced``; of a consumer: ``handled``, ``spill``, ``spilled``,
    ``position``, ``noted`` and ``acknowledged``; of both, those of the
    :class:`~reliamsg.export.exporter.Exporter`.

    This only affects the thread (or asyncio task) that entered the block, not clients that other threads construct,
    even if these threads were started in the block. A client keeps its replacements after the block, on all its
    threads. Blocks can be nested; an inner block only replaces the given arguments.

    Raises :class:`~reliamsg.errors.ConfigError` for invalid arguments.
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
