"""For tests of applications: messages and handlers alone, whole clients over brokers in memory that fail on demand, and
simulations in which everything fails.

The project tests itself with the same. The pytest fixtures are in :mod:`reliamsg.testing.pytest_plugin`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reliamsg.injection import inject
    from reliamsg.testing.durable import DurableDatabase, DurableDict, DurableList, SimulatedFailure
    from reliamsg.testing.handlers import Delivery, HandlerTest
    from reliamsg.testing.memory_broker import MemoryBroker
    from reliamsg.testing.memory_network import MemoryNetwork
    from reliamsg.testing.recording import RecordingMessage
    from reliamsg.testing.simulation import Replay, Simulation, SimulationFailed, simulate

__all__ = [
    "Delivery",
    "DurableDatabase",
    "DurableDict",
    "DurableList",
    "HandlerTest",
    "MemoryBroker",
    "MemoryNetwork",
    "RecordingMessage",
    "Replay",
    "SimulatedFailure",
    "Simulation",
    "SimulationFailed",
    "inject",
    "simulate",
]

_MODULES = {
    "Delivery": "reliamsg.testing.handlers",
    "DurableDatabase": "reliamsg.testing.durable",
    "DurableDict": "reliamsg.testing.durable",
    "DurableList": "reliamsg.testing.durable",
    "HandlerTest": "reliamsg.testing.handlers",
    "MemoryBroker": "reliamsg.testing.memory_broker",
    "MemoryNetwork": "reliamsg.testing.memory_network",
    "RecordingMessage": "reliamsg.testing.recording",
    "Replay": "reliamsg.testing.simulation",
    "SimulatedFailure": "reliamsg.testing.durable",
    "Simulation": "reliamsg.testing.simulation",
    "SimulationFailed": "reliamsg.testing.simulation",
    "inject": "reliamsg.injection",
    "simulate": "reliamsg.testing.simulation",
}


def __getattr__(name: str) -> Any:
    # On demand: pytest loads this package in every run, and the simulator takes a second to import.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
