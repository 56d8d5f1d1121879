"""The brokers in memory of this process, by the name in a site's URL: ``memory://NAME``.

A broker is created when its name is used first, and lives as long as the process. A network of brokers for tests
(:class:`reliamsg.testing.MemoryNetwork`) registers its own while it is open, under names that nobody else has.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from urllib.parse import quote

from reliamsg.config import Site
from reliamsg.errors import ConfigError
from reliamsg.logs import Log
from reliamsg.transport.memory.broker import LocalBroker, NoFaults
from reliamsg.transport.memory.host import MemoryHost

__all__ = ["find_host", "network_names", "register", "unregister"]

log: Log = Log("reliamsg.transport")

_hosts: dict[str, MemoryHost] = {}
_networks = itertools.count(1)
_NETWORK_NAME = re.compile(r"network-\d+\..*")


def network_names(site_names: Sequence[str]) -> dict[str, str]:
    """For each site of a new network, the name that its broker is to be registered under: no network has it twice."""
    number = next(_networks)
    return {name: f"network-{number}.{quote(name, safe='')}" for name in site_names}


def register(name: str, host: MemoryHost) -> MemoryHost:
    """Have `name` mean this broker from now on, and return it."""
    _hosts[name] = host
    return host


def unregister(names: Sequence[str]) -> None:
    """Forget these names. Transports that are open keep their brokers. Unknown names are no error."""
    for name in names:
        _hosts.pop(name, None)


def find_host(site: Site) -> MemoryHost:
    """The broker of a site in memory; created if this is the first use of its name.

    Raises :class:`~reliamsg.errors.ConfigError` if it belongs to a network that is not open, or speaks another protocol
    than the site's URL says.
    """
    name = site.endpoints[0].host
    host = _hosts.get(name)
    if host is None:
        if _NETWORK_NAME.fullmatch(name):
            raise ConfigError(
                f"site {site.name}: the MemoryNetwork of {site.url} is closed, or no longer exists"
            )
        # Several threads may get here with the same name: all of them take what the first one put there.
        host = _hosts.setdefault(name, MemoryHost(LocalBroker(name, site.protocol, NoFaults())))
        log.info(
            "transport.memory_broker_created",
            "site %(site)s: a broker in memory, which keeps nothing when the process exits",
            site=site.name,
        )
    if host.broker.protocol != site.protocol:
        raise ConfigError(
            f"site {site.name}: the broker {name} in memory speaks {host.broker.protocol}, not {site.protocol}"
        )
    return host
