"""Prerequisites of scenarios, and whether this machine meets them."""

from __future__ import annotations

import os
from typing import NamedTuple

from reliamsg.lab.chaos.scenario import Need
from reliamsg.lab.process import LabError, program

__all__ = ["MissingRequirement", "missing"]


class _Program(NamedTuple):
    name: str
    package: str
    """The Debian package that contains it."""
    places: tuple[str, ...] = ()
    """Directories to search in addition to PATH."""


_PROGRAMS: dict[Need, tuple[_Program, ...]] = {
    "mosquitto": (_Program("mosquitto", "mosquitto"),),
    "rabbitmq": (
        _Program(
            "rabbitmq-server", "rabbitmq-server", ("/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin")
        ),
        _Program("epmd", "erlang-base"),
    ),
    "haproxy": (_Program("haproxy", "haproxy"),),
    "network": (_Program("ip", "iproute2"), _Program("iptables", "iptables")),
    "cc": (_Program("cc", "gcc and libc6-dev"),),
    "openssl": (_Program("openssl", "openssl"),),
}


class MissingRequirement(LabError):
    """A prerequisite of the scenario is missing; the message is its name."""


def missing(needs: frozenset[Need]) -> list[str]:
    """The prerequisites among `needs` that this machine does not meet, in words."""
    found = []
    if needs & {"root", "network"} and os.geteuid():
        found.append("root")
    for need in sorted(needs):
        for name, package, places in _PROGRAMS.get(need, ()):
            try:
                program(name, package, *places)
            except LabError as error:
                found.append(str(error))
    return found
