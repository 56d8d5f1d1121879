"""For tests of applications: brokers in memory that fail when told to.

The project tests itself with the same ones. The pytest fixtures are in :mod:`reliamsg.testing.pytest_plugin`.
"""

from reliamsg.transport.memory import MemoryNetwork
from reliamsg.transport.memory_broker import MemoryBroker

__all__ = ["MemoryBroker", "MemoryNetwork"]
