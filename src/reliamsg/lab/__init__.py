"""Real brokers on this machine, and the faults that they are put through.

All brokers are used in the same way (:class:`Broker`): each has a directory and a port of its own, which it
keeps when it is started again; leaving its ``with`` block ends it, and so does the end of this process.
:class:`RabbitCluster` has several in network namespaces (as root), :class:`HaProxy` balances connections.
"""

from reliamsg.lab.broker import Broker, TlsFiles
from reliamsg.lab.cluster import ClusterNode, PartitionMode, RabbitCluster
from reliamsg.lab.embedded import EmbeddedBroker
from reliamsg.lab.haproxy import HaProxy
from reliamsg.lab.mosquitto import Mosquitto
from reliamsg.lab.network import Network
from reliamsg.lab.process import LabError, free_port, wait_until
from reliamsg.lab.proxy import TcpProxy
from reliamsg.lab.rabbitmq import RabbitNode

__all__ = [
    "Broker",
    "ClusterNode",
    "EmbeddedBroker",
    "HaProxy",
    "LabError",
    "Mosquitto",
    "Network",
    "PartitionMode",
    "RabbitCluster",
    "RabbitNode",
    "TcpProxy",
    "TlsFiles",
    "free_port",
    "wait_until",
]
