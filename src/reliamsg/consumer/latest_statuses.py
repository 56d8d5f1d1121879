"""The newest status of each producer, and how much of the producer's journal the group's journal vouches for."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
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

    def __init__(self, journal_buffer: ConsumerJournal, sites: Collection[str]) -> None:
        self.by_producer: dict[str, LatestStatus] = {}
        self._journal_buffer = journal_buffer
        self.news: dict[str, set[str]] = {site: set() for site in sites}
        """By site, producers whose newest status is not journalled for it."""
        self._before: dict[str, dict[str, LatestStatus]] = {site: {} for site in sites}
        """By site, the statuses of those that :meth:`mark` noted."""

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

    def mark(self, site: str) -> None:
        """Note the newest statuses: they precede whatever is asked of the site from now on. Later statuses, which may
        not, replace them in :attr:`by_producer` only."""
        news = self.news[site]
        self._before[site] = {name: self.by_producer[name] for name in news} if news else {}

    def journal(self, site: str, before: float = float("-inf")) -> dict[str, tuple[int, str]]:
        """Journal how far each producer said that its own journal goes, in its newest status before that time or, if
        that is earlier, before the latest :meth:`mark`. Returns what is news since the last time for this site: by
        producer, the row and the incarnation that wrote it."""
        marked, self._before[site] = self._before[site], {}
        newest = {name: self.by_producer[name] for name in self.news[site]}
        return self._journal(
            site, marked | {name: status for name, status in newest.items() if status.at <= before}
        )

    def _journal(self, site: str, statuses: Mapping[str, LatestStatus]) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        for producer, status in sorted(statuses.items()):
            newest = self.by_producer.get(producer)
            if newest is None or newest is status:
                self.news[site].discard(producer)
            found[producer] = status.lsn, f"{status.incarnation:016x}"
            journalled = status.journalled if newest is None else newest.journalled
            if journalled < (status.epoch, status.lsn):
                (newest or status).journalled = (status.epoch, status.lsn)
                self._journal_buffer.note(
                    "heard", stream=Stream(producer, "", 0), epoch=status.epoch, incarnation=status.incarnation,
                    detail={"lsn": status.lsn, "epoch": status.epoch},
                )  # fmt: skip
        return found

    def forget_all_but(self, active: Container[str]) -> None:
        """Forget the producers that are not `active`."""
        for producer in [name for name in self.by_producer if name not in active]:
            del self.by_producer[producer]
            self.refuse(producer)
            for news in self.news.values():
                news.discard(producer)
