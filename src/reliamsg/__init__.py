"""Messages that are not lost, doubled or reordered, whatever happens to brokers, networks and datacenters."""

import logging

from reliamsg.config import JournalExport, Quorum, Site
from reliamsg.keys import KeyRing
from reliamsg.message import Gap, Message, MessageId
from reliamsg.receiving.consumer import Consumer
from reliamsg.sending.producer import Producer
from reliamsg.sending.receipt import Receipt

__version__ = "0.1.0"
__all__ = [
    "Consumer",
    "Gap",
    "JournalExport",
    "KeyRing",
    "Message",
    "MessageId",
    "Producer",
    "Quorum",
    "Receipt",
    "Site",
]

logging.getLogger("reliamsg").addHandler(logging.NullHandler())
