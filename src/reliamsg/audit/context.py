"""What the judge of one stream has to know of clients and other streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from reliamsg.audit.accepted import Acceptances

__all__ = [
    "NOBODY", "Context", "Cut", "GroupContext", "Journal", "ProducerContext", "heard", "is_incarnation",
    "position", "settled_by",
]  # fmt: skip

NOBODY = "0" * 16
"""The incarnation in rows that name none."""
_HEX_DIGITS = frozenset("0123456789abcdef")


class Cut(msgspec.Struct, array_like=True, frozen=True, order=True):
    """A place where a producer's journal may lack a part: between two consecutive openings, or up to one that it
    lacks."""

    low: int
    """The epoch in which the opening before it ended."""
    goes_on: bool
    """Whether that opening was not closed, so that its epoch may have continued."""
    high: int
    """The epoch of the opening after it, or one beyond all that may be missing."""

    def touches(self, epoch: int) -> bool:
        """Whether the epoch may have messages that are not in the journal."""
        return self.low < epoch < self.high or (self.goes_on and self.low == epoch)


class Journal(msgspec.Struct):
    """One history of a client's file."""

    role: str
    client: str
    name: str
    rank: int
    """1, 2, … among its client's histories, by the clock at the first row."""
    broken: bool
    """Whether rows may be missing."""
    finished: bool
    """Whether its last boot was closed, so that no rows can follow."""
    boots: dict[str, list[int]]
    """By name, the first row of each boot; more than one, in order, if it continues after another boot began."""
    opened: dict[int, dict[str, Any]]
    """By its first row, the detail of each boot's ``opened`` row."""
    newest: list[tuple[int, int]]
    """lsn and epoch of each row of a producer with a later epoch than all rows before."""
    fenced: dict[int, int]
    """By first row of the boot, the first ``fenced`` row."""
    stepped: int = 0
    """The row since which the client's clock was not set; 0 if it never was."""
    end: int = 0
    """The highest epoch in any row."""

    @property
    def last_boot(self) -> int:
        return max((at for own in self.boots.values() for at in own), default=0)

    def boot_lsn(self, boot: str, lsn: int) -> int:
        """The first row of the boot, or of its continuation, to which row `lsn` belongs."""
        own = self.boots[boot]
        return own[0] if len(own) == 1 else max((at for at in own if at <= lsn), default=own[0])

    def is_whole(self, boot_lsn: int) -> bool:
        """Whether a boot's journal is complete. Rows of others may be extended later, so they prove nothing about
        missing rows."""
        return not self.broken and (self.finished or boot_lsn < self.last_boot)


class GroupContext(msgspec.Struct):
    """A group that left a journal."""

    sound: bool
    """No row is missing."""
    finished: bool
    """No row can follow."""
    latest: bool
    """It joins streams with what arrives first, even if producers count it for earlier messages."""
    replaced: dict[str, int]
    """The histories of inboxes that continued for one that is lost with its journal, and from which boot on."""
    unfinished: set[str]
    """The histories that rows may follow."""
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    """By opening of any inbox, its last row."""
    lacks_rows: bool = False
    """Its journals lack rows at their end that producers name."""

    def goes_beyond(self, boot: str, lsn: int) -> bool:
        """Whether the journals show everything that an opening had done when that was its newest row. Rows grow until
        they are exported: in a journal that ends there, some may be from before."""
        return self.sound and self.rows.get(boot, 0) > lsn > 0

    @property
    def whole(self) -> bool:
        return self.sound and self.finished


class ProducerContext(msgspec.Struct):
    """A producer that left a journal."""

    sound: bool
    open_from: int | None
    """The epoch from which on an open journal may have more rows; None if all were closed."""
    continues: bool
    """Whether messages from there on that are not in its journals were enqueued after the time up to which messages are
    accounted for."""
    cuts: list[Cut]
    epochs: set[int]
    absent: set[int]
    """Epochs of openings to which others refer and that no journal has."""
    grows_from: int | None
    """The epoch from which on rows are missing that may follow, or are later than the audit covers; None if none is."""
    later_from: int | None
    """The epoch from which on openings are later than the audit covers; None if none is."""
    entered: set[int]
    """The epochs of all openings."""
    unclosed: set[int]
    """The last epochs of openings that were not closed before the next one began."""
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    """By incarnation of an opening, its last row."""

    def goes_beyond(self, incarnation: str, lsn: int) -> bool:
        """Whether the journals show everything that an opening had done when that was its newest row. Rows grow until
        they are exported: in a journal that ends there, some may be from before."""
        return self.sound and self.rows.get(incarnation, 0) > lsn > 0

    def may_follow(self, epoch: int) -> bool:
        """Whether rows about the epoch may follow in an open journal."""
        return self.open_from is not None and epoch >= self.open_from

    def has_all_of(self, epoch: int) -> bool:
        """Whether messages of the epoch that are not in its journals were never enqueued, unless these are copies. A
        later opening may have left no journal."""
        return self.sound and bool(self.epochs) and epoch <= max(self.epochs) and not self.may_follow(epoch)

    def may_end_early(self, epoch: int) -> bool:
        """Whether messages of the epoch may have been lost with the outbox's disk: at the end of an opening, or with an
        opening that left no journal. A group that received them and goes on to a later epoch meets an opening that does
        not know of them."""
        return epoch in self.unclosed or (epoch not in self.entered and epoch < max(self.entered, default=0))


class Context(msgspec.Struct):
    """The same for all streams."""

    journals: dict[str, Journal]
    groups: dict[str, GroupContext]
    producers: dict[str, ProducerContext]
    named: dict[str, set[str]]
    """By topic, the groups that consume it according to any client."""
    contested: dict[str, set[int]]
    """By producer, the epochs with more than one incarnation."""
    proofs: dict[tuple[str, str, str], int]
    """By group, site and journal of a producer: everything confirmed there up to this row has left the queue."""
    drained: bool = False
    gap_timeout: float | None = None
    tolerance: float = 1.0
    until_us: int | None = None
    acceptances: Acceptances = msgspec.field(default_factory=Acceptances)


def is_incarnation(value: object) -> bool:
    """Whether it is 16 hex digits."""
    return isinstance(value, str) and len(value) == 16 and set(value) <= _HEX_DIGITS


def position(detail: Mapping[str, Any] | None, name: str) -> tuple[int, int] | None:
    """The position (epoch, number) in a row's detail; None if there is none."""
    match (detail or {}).get(name):
        case [int(epoch), int(number)]:
            return epoch, number
    return None


def settled_by(detail: Mapping[str, Any] | None) -> tuple[str, int]:
    """The opening of an inbox, and the row of its journal, that a ``consumed`` row names; empty and 0 if none."""
    match (detail or {}).get("journal"):
        case [str(boot), int(lsn)]:
            return boot, lsn
    return "", 0


def heard(detail: Mapping[str, Any] | None) -> tuple[str, int]:
    """The opening of a producer, and the row of its journal, by which a ``declared`` row says that it had removed the
    messages; empty and 0 if none."""
    match (detail or {}).get("heard"):
        case [int(lsn), str(incarnation)] if is_incarnation(incarnation):
            return incarnation, lsn
    return "", 0
