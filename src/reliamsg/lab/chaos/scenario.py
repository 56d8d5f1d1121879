"""What a scenario is: the facts about one fault. :mod:`~reliamsg.lab.chaos.registry` pairs them with its code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Harm", "Need", "Scenario"]

Need = Literal["mosquitto", "rabbitmq", "haproxy", "root", "network", "cc", "openssl"]
"""A prerequisite of a scenario: a program; ``root``; ``network``: root, iproute2 and iptables; ``cc``: a C compiler."""

Harm = Literal["lost", "duplicates", "out_of_order"]
"""Harm that a fault does to plain clients: the name of a field of :class:`~reliamsg.lab.chaos.result.Baseline`."""


@dataclass(frozen=True)
class Scenario:
    """The facts about one fault."""

    name: str
    title: str
    """What happens, in one line."""
    promises: str
    """The promises that are threatened: ``P1 P3``."""
    messages: int
    """How many messages to publish by default."""
    numbers: tuple[int, ...] = ()
    """Numbers in the catalogue of faults; none for runs that combine several faults."""
    needs: frozenset[Need] = frozenset({"mosquitto"})
    own_brokers: bool = False
    """It does things to brokers that must not be done to a user's brokers."""
    earlier: bool = False
    """One of the runs with several faults that are older than the catalogue."""
    harm: Harm | None = None
    """Harm that plain clients must have suffered, or the run proves nothing. None if no plain clients take part, or the
    fault may leave them unharmed."""
