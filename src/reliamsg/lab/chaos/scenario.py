"""What a scenario is, and the table of all that there are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reliamsg.lab.process import LabError, program

if TYPE_CHECKING:
    from reliamsg.lab.chaos.context import Context

__all__ = ["Harm", "Lacking", "Need", "Scenario", "missing", "register", "scenario"]

Need = Literal["mosquitto", "rabbitmq", "haproxy", "root", "network", "cc", "openssl"]
"""What a scenario can't do without: programs; ``root``; ``network``: root, iproute2 and iptables; ``cc``: a C
compiler."""

Harm = Literal["lost", "duplicates", "out_of_order"]
"""What plain clients suffer of a fault, by the name of the field of :class:`~reliamsg.lab.chaos.result.Control`."""

_RABBITMQ = ("/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin")
_PROGRAMS: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "mosquitto": [("mosquitto", "mosquitto", ())],
    "rabbitmq": [("rabbitmq-server", "rabbitmq-server", _RABBITMQ), ("epmd", "erlang-base", ())],
    "haproxy": [("haproxy", "haproxy", ())],
    "network": [("ip", "iproute2", ()), ("iptables", "iptables", ())],
    "cc": [("cc", "gcc and libc6-dev", ())],
    "openssl": [("openssl", "openssl", ())],
}
"""Program, Debian package, and places beside PATH."""


class Lacking(LabError):
    """What a scenario can't do without is not there; the message says only what."""


@dataclass(frozen=True)
class Scenario:
    """One fault, with all that it takes to try it."""

    name: str
    title: str
    """What is done, in a line."""
    run: Callable[[Context], None]
    numbers: tuple[int, ...]
    """Of the catalogue of faults; none for runs that have several faults."""
    promises: str
    """Which promises are threatened: ``P1 P3``."""
    messages: int
    """How many are published unless somebody asks for another number."""
    needs: frozenset[Need]
    own_brokers: bool
    """It does something to brokers that nobody may do to a user's."""
    earlier: bool = False
    """One of the runs with several faults that are older than the catalogue."""
    harm: Harm | None = None
    """What plain clients must have suffered of the fault, else the run proves nothing; None where they have no part
    in it, or the fault may cost them nothing."""


_scenarios: dict[str, Scenario] = {}


def scenario(
    name: str,
    *numbers: int,
    title: str,
    promises: str,
    messages: int,
    needs: tuple[Need, ...] = ("mosquitto",),
    own_brokers: bool = False,
    earlier: bool = False,
    harm: Harm | None = None,
) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    """Register the decorated function under `name`; see :class:`Scenario`."""

    def add(run: Callable[[Context], None]) -> Callable[[Context], None]:
        register(
            Scenario(
                name, title, run, numbers, promises, messages, frozenset(needs), own_brokers, earlier, harm
            )
        )
        return run

    return add


def register(found: Scenario) -> None:
    """Put a scenario into the table."""
    if found.name in _scenarios:
        raise LabError(f"two scenarios are called {found.name}")
    _scenarios[found.name] = found


def registered() -> list[Scenario]:
    """All in the table, by their numbers; those without come last."""
    return sorted(_scenarios.values(), key=lambda s: (s.numbers or (1000,), s.name))


def missing(needs: frozenset[Need]) -> list[str]:
    """What this machine lacks of `needs`, in words; empty where nothing does."""
    found = []
    if needs & {"root", "network"} and os.geteuid():
        found.append("root")
    for need in sorted(needs):
        for name, package, places in _PROGRAMS.get(need, []):
            try:
                program(name, package, *places)
            except LabError as error:
                found.append(str(error))
    return found
