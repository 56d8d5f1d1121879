"""Real brokers on this machine, and the faults that they are put through.

All brokers are used in the same way (:class:`Broker`): each has a directory and a port of its own, which it
keeps when it is started again; leaving its ``with`` block ends it, and so does the end of this process.
:class:`RabbitCluster` has several in network namespaces (as root), :class:`HaProxy` balances connections.
"""

from reliamsg.lab.brokers.base import Broker, TlsFiles
from reliamsg.lab.brokers.cluster import ClusterNode, PartitionMode, RabbitCluster
from reliamsg.lab.brokers.haproxy import HaProxy
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.embedded.broker import EmbeddedBroker
from reliamsg.lab.faults.network import Network
from reliamsg.lab.faults.proxy import TcpProxy
from reliamsg.lab.process import LabError, free_port, wait_until

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
