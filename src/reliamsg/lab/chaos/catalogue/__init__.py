"""All scenarios, in modules by the kind of fault. Importing them puts them into the table."""

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
from reliamsg.lab.chaos.scenario import Scenario, registered
from reliamsg.lab.process import LabError

__all__ = ["find", "scenarios"]

_MODULES = (process, disk, network, broker, confirmed_loss, combined, cluster, attacks, protocol)


def scenarios() -> list[Scenario]:
    """All that there are, by their numbers in the catalogue of faults; those without one come last."""
    return registered()


def find(name: str) -> Scenario:
    """The scenario of this name; LabError that names what there is."""
    for found in scenarios():
        if found.name == name:
            return found
    raise LabError(f"there is no scenario {name!r}; 'reliamsg lab chaos list' shows all")
