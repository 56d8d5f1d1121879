"""The newest status of each producer, and how much of the producer's journal the group's journal vouches for."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from reliamsg.consumer.journalling import ConsumerJournal
from reliamsg.message import Stream
from reliamsg.wire.control import Status

__all__ = ["LatestStatus", "LatestStatuses", "interval_of"]

_UNKNOWN_INTERVAL_S = 60.0


def interval_of(status: Status) -> float:
    """How far apart the producer's statuses are, in seconds, as it promises."""
    return status.interval_ms / 1000 or _UNKNOWN_INTERVAL_S


@dataclass(slots=True)
class LatestStatus:
    """The newest status of a producer."""

    epoch: int
    incarnation: int
    number: int
    lsn: int
    """The newest row of its journal that was committed."""
    at: float
    interval: float
    """In seconds, as it promised."""
    journalled: tuple[int, int] = (0, 0)
    """(epoch, lsn) that this group's journal holds."""


class LatestStatuses:
    """One group's. Everything under the consumer's lock."""

    def __init__(self, journal_buffer: ConsumerJournal, sites: Iterable[str]) -> None:
        self.by_producer: dict[str, LatestStatus] = {}
        self._journal_buffer = journal_buffer
        self.news: dict[str, set[str]] = {site: set() for site in sites}
        """By site, producers whose newest status is not journalled for it."""

    def examine(self, status: Status) -> None:
        """A status is about to be applied: what it makes the group journal refers to it. To be followed by :meth:`take`
        or :meth:`refuse`."""
        self._journal_buffer.committed[status.producer] = status.committed, status.incarnation

    def refuse(self, producer: str) -> None:
        """Nothing of a producer's status was accepted, and the producer is unknown."""
        self._journal_buffer.committed.pop(producer, None)

    def take(self, status: Status, now: float) -> None:
        """Remember a status, unless a newer one of its producer is known."""
        known = self.by_producer.get(status.producer)
        if known is not None and (status.epoch, status.number) < (known.epoch, known.number):
            return
        journalled = known.journalled if known is not None else (0, 0)
        self.by_producer[status.producer] = LatestStatus(
            status.epoch, status.incarnation, status.number, status.lsn, now, interval_of(status), journalled
        )
        if (status.epoch, status.lsn) > journalled:
            for news in self.news.values():
                news.add(status.producer)

    def journal(self, site: str, before: float) -> dict[str, tuple[int, str]]:
        """Journal how far each producer, before that time, said that its own journal goes, and return what is news
        since the last time for this site: by producer, the row and the incarnation that wrote it."""
        found: dict[str, tuple[int, str]] = {}
        for producer in sorted(self.news[site]):
            known = self.by_producer[producer]
            if known.at > before:
                continue
            self.news[site].discard(producer)
            found[producer] = known.lsn, f"{known.incarnation:016x}"
            if known.journalled < (known.epoch, known.lsn):
                known.journalled = (known.epoch, known.lsn)
                self._journal_buffer.note(
                    "heard", stream=Stream(producer, "", 0), epoch=known.epoch, incarnation=known.incarnation,
                    detail={"lsn": known.lsn, "epoch": known.epoch},
                )  # fmt: skip
        return found

    def forget_all_but(self, active: Container[str]) -> None:
        """Forget the producers that are not `active`."""
        for producer in [name for name in self.by_producer if name not in active]:
            del self.by_producer[producer]
            self.refuse(producer)
            for news in self.news.values():
                news.discard(producer)
