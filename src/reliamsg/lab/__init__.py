"""Real brokers on this machine, and environment faults to inject.

All brokers share one interface (:class:`Broker`). Each has its own directory and port, which it keeps when it is
restarted; leaving its ``with`` block stops it, and so does the exit of this process. :class:`RabbitCluster` runs
several nodes in network namespaces (as root), :class:`HaProxy` balances connections, :class:`TcpProxy` injects faults.
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
