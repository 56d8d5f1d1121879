"""All scenarios, in one module per kind of fault. Importing this package registers them."""

from reliamsg.lab.chaos.catalogue import (
    attacks,
    broker,
    cluster,
    combined,
    confirmed_loss,
    disk,
    network,
    process,
    protocol,
)
from reliamsg.lab.chaos.registry import Entry, registered
from reliamsg.lab.process import LabError

__all__ = ["find", "scenarios"]

_MODULES = (process, disk, network, broker, confirmed_loss, combined, cluster, attacks, protocol)


def scenarios() -> list[Entry]:
    """All scenarios by their numbers in the catalogue of faults; those without a number come last."""
    return registered()


def find(name: str) -> Entry:
    """The scenario with this name; LabError if there is none."""
    for entry in scenarios():
        if entry.scenario.name == name:
            return entry
    raise LabError(f"there is no scenario {name!r}; 'reliamsg lab chaos list' shows all scenarios")
