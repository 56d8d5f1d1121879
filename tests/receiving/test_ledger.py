"""How arrivals are named in the journal, and how few rows they take."""

from __future__ import annotations

from reliamsg.message import Stream
from reliamsg.receiving.ledger import Ledger
from reliamsg.store.journal import Entry

STREAM = Stream("producer", "topic", 0)


def arrive(
    ledger: Ledger, kind: str, site: str, first: int, last: int, epoch: int = 1, reason: str = ""
) -> None:
    ledger.add(Entry(kind, STREAM, epoch, 7, first, last, site, "group", reason))


def taken(ledger: Ledger) -> list[tuple[str, str, int, int, int]]:
    return [(e.kind, e.site, e.epoch, e.first, e.last) for e in ledger.take()]


def test_two_sites_in_step_take_a_row_each() -> None:
    ledger = Ledger()
    for number in range(1, 100, 2):  # now one site is first, and now the other
        arrive(ledger, "received", "dc1", number, number)
        arrive(ledger, "duplicate", "dc2", number, number)
        arrive(ledger, "received", "dc2", number + 1, number + 1)
        arrive(ledger, "duplicate", "dc1", number + 1, number + 1)
    assert taken(ledger) == [("received", "dc1", 1, 1, 100), ("received", "dc2", 1, 1, 100)]


def test_what_a_site_sends_again_is_a_duplicate() -> None:
    ledger = Ledger()
    arrive(ledger, "received", "dc1", 1, 10)
    arrive(ledger, "duplicate", "dc1", 1, 5)
    arrive(ledger, "duplicate", "dc1", 6, 10)
    arrive(ledger, "received", "dc1", 11, 12)
    assert taken(ledger) == [("received", "dc1", 1, 1, 12), ("duplicate", "dc1", 1, 1, 10)]


def test_the_order_goes_on_beyond_what_was_taken_and_into_the_next_epoch() -> None:
    ledger = Ledger()
    arrive(ledger, "received", "dc1", 1, 10)
    assert taken(ledger) == [("received", "dc1", 1, 1, 10)]
    arrive(ledger, "duplicate", "dc1", 11, 12)
    arrive(ledger, "duplicate", "dc1", 1, 3, epoch=2)
    arrive(ledger, "duplicate", "dc1", 4, 4, epoch=2, reason="late_or_duplicate")
    assert taken(ledger) == [
        ("received", "dc1", 1, 11, 12),
        ("received", "dc1", 2, 1, 3),
        ("duplicate", "dc1", 2, 4, 4),
    ]
