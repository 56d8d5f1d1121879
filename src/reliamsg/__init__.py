"""Messages that are not lost, duplicated or reordered, whatever happens to brokers, networks and datacenters."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from reliamsg import pickling as _pickling  # noqa: F401  (registers the pickling of messages)
from reliamsg.config import JournalExport, Site
from reliamsg.errors import (
    ClosedError,
    ConfigError,
    ConfirmTimeout,
    DeadLetterHalt,
    FarEpoch,
    FatalError,
    ForkedError,
    GapError,
    GapHeld,
    GroupBusy,
    InboxFull,
    InboxIndeterminate,
    InboxLocked,
    InboxWriteError,
    JournalFull,
    JournalTargetError,
    MessageRemoved,
    MessageTooLarge,
    OutboxFull,
    OutboxIndeterminate,
    OutboxLocked,
    OutboxWriteError,
    ProducerConflict,
    ProducerFenced,
    QuarantineFull,
    ReliamsgError,
    StoreCorrupt,
    StoreError,
    StoreMismatch,
    StoreRetired,
    StoreTooNew,
    StoreUnsafe,
    TooManyStreams,
    TransientError,
)
from reliamsg.keys import KeyRing
from reliamsg.message import Gap, Message, MessageId
from reliamsg.policy import Quorum
from reliamsg.version import VERSION

if TYPE_CHECKING:
    from reliamsg.consumer.api import Consumer
    from reliamsg.producer.api import Producer
    from reliamsg.producer.receipt import Receipt

__version__ = VERSION
__all__ = [
    "ClosedError",
    "ConfigError",
    "ConfirmTimeout",
    "Consumer",
    "DeadLetterHalt",
    "FarEpoch",
    "FatalError",
    "ForkedError",
    "Gap",
    "GapError",
    "GapHeld",
    "GroupBusy",
    "InboxFull",
    "InboxIndeterminate",
    "InboxLocked",
    "InboxWriteError",
    "JournalExport",
    "JournalFull",
    "JournalTargetError",
    "KeyRing",
    "Message",
    "MessageId",
    "MessageRemoved",
    "MessageTooLarge",
    "OutboxFull",
    "OutboxIndeterminate",
    "OutboxLocked",
    "OutboxWriteError",
    "Producer",
    "ProducerConflict",
    "ProducerFenced",
    "QuarantineFull",
    "Quorum",
    "Receipt",
    "ReliamsgError",
    "Site",
    "StoreCorrupt",
    "StoreError",
    "StoreMismatch",
    "StoreRetired",
    "StoreTooNew",
    "StoreUnsafe",
    "TooManyStreams",
    "TransientError",
]

# Few programs both publish and consume: each half is loaded on first use (PEP 562).
_HALVES = {
    "Consumer": "reliamsg.consumer.api",
    "Producer": "reliamsg.producer.api",
    "Receipt": "reliamsg.producer.receipt",
}


def __getattr__(name: str) -> Any:
    if name not in _HALVES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HALVES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


logging.getLogger("reliamsg").addHandler(logging.NullHandler())
