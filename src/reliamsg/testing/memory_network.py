"""A network of brokers in memory, for tests."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Literal

from reliamsg.config import Site
from reliamsg.testing.memory_broker import MemoryBroker
from reliamsg.transport.memory.host import MemoryHost
from reliamsg.transport.memory.registry import network_names, register, unregister

__all__ = ["MemoryNetwork"]


class MemoryNetwork:
    """Sites whose brokers are in the memory of this process, and fail on demand.

    ::

        with MemoryNetwork("dc1", "dc2") as network:
            producer = Producer("p", network.sites, outbox=path)
            network["dc1"].down()

    Its sites have ``memory://`` URLs that no other network has, so two networks with the same site names never meet.
    They can be used until :meth:`close`, or until nothing refers to the network any more: opening a client after that
    raises :class:`~reliamsg.errors.ConfigError`. For other settings of a site, use ``dataclasses.replace``:
    ``replace(network.sites[0], prefetch=4)``.

    `protocol` is that of all sites, or a mapping by name. `seed` decides every random choice of the brokers. With
    ``threaded=False`` nothing happens outside :meth:`run_pending`: clients of such sites need a test that drives their
    engines.
    """

    def __init__(
        self,
        *site_names: str,
        protocol: Literal["amqp", "mqtt"] | Mapping[str, Literal["amqp", "mqtt"]] = "amqp",
        seed: int = 0,
        threaded: bool = True,
    ) -> None:
        protocols = {name: protocol if isinstance(protocol, str) else protocol[name] for name in site_names}
        self.brokers: dict[str, MemoryBroker] = {
            name: MemoryBroker(name, protocol=protocols[name], seed=seed + i)
            for i, name in enumerate(site_names)
        }
        names = network_names(site_names)
        self.sites: tuple[Site, ...] = tuple(
            Site(name, f"memory://{names[name]}/{protocols[name]}") for name in dict.fromkeys(site_names)
        )
        self._hosts = [
            register(names[name], MemoryHost(broker, threaded=threaded))
            for name, broker in self.brokers.items()
        ]
        self._unregister = weakref.finalize(self, unregister, tuple(names.values()))
        self._unregister.atexit = False

    def __getitem__(self, site_name: str) -> MemoryBroker:
        return self.brokers[site_name]

    def run_pending(self, max_rounds: int = 10_000) -> int:
        """Let all stepped transports work until there is nothing left to do; return how many rounds it took.

        Raises :class:`RuntimeError` if there is no end to it within `max_rounds`.
        """
        for host in self._hosts:
            host.rested()
        for rounds in range(max_rounds):
            # A list, not any(): each transport has a turn in each round.
            if not any([host.step() for host in self._hosts]):  # noqa: C419
                return rounds
        raise RuntimeError(f"still not quiet after {max_rounds} rounds")

    def close(self, timeout: float = 5.0) -> None:
        """Close every transport that was opened to these sites. Nothing can be opened there any more."""
        self._unregister()
        for host in self._hosts:
            host.close(timeout)

    def __enter__(self) -> MemoryNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
