"""What the tests of the sending core share: rows, and a site that is driven by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from reliamsg.protocol.sender.window import SendQueue, SiteLimits, SiteWindow

LIMITS = SiteLimits(batches=8, bytes=1_000, confirm_timeout=30.0)


@dataclass(frozen=True)
class FakeRow:
    """A row of the outbox, as far as the core looks at it."""

    id: int
    stream_id: int = 1
    size: int = 10


@dataclass
class FakeSite:
    """Drives one site's window over rows, as its transport and feed would."""

    window: SiteWindow
    rows: list[FakeRow] = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    """Everything that was sent, in order."""

    def pull(self, now: float = 0.0) -> list[int]:
        """Send what may be sent now; returns the ids."""
        sent: list[int] = []
        for queue in self.window.ready(now):
            self._pull(queue, sent, now)
        self.window.rejoin(len(self.rows))
        self.got += sent
        return sent

    def _pull(self, queue: SendQueue, sent: list[int], now: float) -> None:
        sent += [row.id for row in self.window.send(queue, self.rows[max(0, queue.next - 1) :], now)]

    def confirm(self, *ids: int, now: float = 0.0) -> list[int]:
        return list(self.window.confirm(ids, now))


def site(*streams: int, limits: SiteLimits = LIMITS, cursor: int = 1) -> FakeSite:
    """A connected site, and a row for each of `streams`, with ids from 1."""
    found = FakeSite(SiteWindow("dc1", limits, cursor), [FakeRow(n, s) for n, s in enumerate(streams, 1)])
    found.window.connect(None)
    return found
