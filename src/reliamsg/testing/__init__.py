"""For tests of applications: brokers in memory that fail when told to, and what else tests put into clients.

The project tests itself with the same. The pytest fixtures are in :mod:`reliamsg.testing.pytest_plugin`.
"""

from reliamsg.injection import inject
from reliamsg.testing.memory_network import MemoryNetwork
from reliamsg.transport.memory.broker import MemoryBroker

__all__ = ["MemoryBroker", "MemoryNetwork", "inject"]
