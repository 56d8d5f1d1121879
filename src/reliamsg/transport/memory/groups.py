"""Creating and deleting groups at brokers in memory."""

from __future__ import annotations

from collections.abc import Sequence

from reliamsg.config import Site
from reliamsg.keys import KeyRing
from reliamsg.transport.base import Binding
from reliamsg.transport.memory.registry import find_host

__all__ = ["create_group", "delete_group"]


def create_group(site: Site, bindings: Sequence[Binding], keys: KeyRing | None) -> None:
    """Have the broker store messages for the groups in `bindings` from now on."""
    broker = find_host(site).broker
    for binding in bindings:
        broker.create_group(binding.topic, binding.group, binding.partition, keys=keys)


def delete_group(site: Site, bindings: Sequence[Binding]) -> None:
    """Delete the groups in `bindings`, with everything stored for them."""
    broker = find_host(site).broker
    for binding in bindings:
        broker.delete_group(binding.topic, binding.group, binding.partition)
