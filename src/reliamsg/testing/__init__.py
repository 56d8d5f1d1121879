"""For tests of applications: brokers in memory that fail on demand, and the injection of transports into clients.

The project tests itself with the same. The pytest fixtures are in :mod:`reliamsg.testing.pytest_plugin`.
"""

from reliamsg.injection import inject
from reliamsg.testing.memory_broker import MemoryBroker
from reliamsg.testing.memory_network import MemoryNetwork

__all__ = ["MemoryBroker", "MemoryNetwork", "inject"]
