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
    "Delivery": "testing.handlers",
    "DurableDatabase": "testing.durable",
    "DurableDict": "testing.durable",
    "DurableList": "testing.durable",
    "HandlerTest": "testing.handlers",
    "MemoryBroker": "testing.memory_broker",
    "MemoryNetwork": "testing.memory_network",
    "RecordingMessage": "testing.recording",
    "Replay": "testing.simulation",
    "SimulatedFailure": "testing.durable",
    "Simulation": "testing.simulation",
    "SimulationFailed": "testing.simulation",
    "inject": "injection",
    "simulate": "testing.simulation",
}


def __getattr__(name: str) -> Any:
    # On demand: pytest loads this package in every run, and the simulator takes a second to import.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"reliamsg.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
