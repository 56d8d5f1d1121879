"""How arrivals are named in the journal, and how few rows they take."""

from __future__ import annotations

from reliamsg.consumer.journalling import ConsumerJournal
from reliamsg.message import Stream
from reliamsg.protocol.receiver.events import Note

STREAM = Stream("producer", "topic", 0)


def arrive(
    journal: ConsumerJournal, kind: str, site: str, first: int, last: int, epoch: int = 1, reason: str = ""
) -> None:
    journal.add_note(Note(kind, STREAM, epoch, 7, first, last, site, reason))


def taken(journal: ConsumerJournal) -> list[tuple[str, str, int, int, int]]:
    return [(e.kind, e.site, e.epoch, e.first, e.last) for e in journal.take()]


def test_two_sites_in_step_take_a_row_each() -> None:
    journal = ConsumerJournal("group")
    for number in range(1, 100, 2):  # now one site is first, and now the other
        arrive(journal, "received", "dc1", number, number)
        arrive(journal, "duplicate", "dc2", number, number)
        arrive(journal, "received", "dc2", number + 1, number + 1)
        arrive(journal, "duplicate", "dc1", number + 1, number + 1)
    assert taken(journal) == [("received", "dc1", 1, 1, 100), ("received", "dc2", 1, 1, 100)]


def test_what_a_site_sends_again_is_a_duplicate() -> None:
    journal = ConsumerJournal("group")
    arrive(journal, "received", "dc1", 1, 10)
    arrive(journal, "duplicate", "dc1", 1, 5)
    arrive(journal, "duplicate", "dc1", 6, 10)
    arrive(journal, "received", "dc1", 11, 12)
    assert taken(journal) == [("received", "dc1", 1, 1, 12), ("duplicate", "dc1", 1, 1, 10)]


def test_the_order_goes_on_beyond_what_was_taken_and_into_the_next_epoch() -> None:
    journal = ConsumerJournal("group")
    arrive(journal, "received", "dc1", 1, 10)
    assert taken(journal) == [("received", "dc1", 1, 1, 10)]
    arrive(journal, "duplicate", "dc1", 11, 12)
    arrive(journal, "duplicate", "dc1", 1, 3, epoch=2)
    arrive(journal, "duplicate", "dc1", 4, 4, epoch=2, reason="late_or_duplicate")
    assert taken(journal) == [
        ("received", "dc1", 1, 11, 12),
        ("received", "dc1", 2, 1, 3),
        ("duplicate", "dc1", 2, 4, 4),
    ]


def test_repairs_come_in_an_order_of_their_own() -> None:
    journal = ConsumerJournal("group")
    arrive(journal, "received", "dc1", 1, 10)
    arrive(journal, "received", "dc1", 21, 30, reason="repair")
    arrive(journal, "duplicate", "dc1", 11, 12)
    assert taken(journal) == [
        ("received", "dc1", 1, 1, 10),
        ("received", "dc1", 1, 21, 30),
        ("received", "dc1", 1, 11, 12),
    ]


def test_what_a_stream_sends_after_it_left_memory_begins_anew() -> None:
    journal = ConsumerJournal("group")
    arrive(journal, "received", "dc1", 1, 10)
    journal.forget(STREAM)
    arrive(journal, "duplicate", "dc1", 11, 12)
    assert taken(journal) == [("received", "dc1", 1, 1, 10), ("duplicate", "dc1", 1, 11, 12)]


def test_what_was_declared_between_two_deliveries_keeps_them_apart() -> None:
    journal = ConsumerJournal("group")
    for kind, first, last in (("acknowledged", 1, 2), ("declared", 3, 3), ("acknowledged", 3, 4)):
        journal.add_note(Note(kind, STREAM, 1, 7, first, last))
    for kind, first, last in (("delivered", 1, 2), ("declared", 3, 3), ("delivered", 3, 4)):
        journal.add_note(Note(kind, STREAM, 1, 7, first, last))
    assert taken(journal) == [
        ("acknowledged", "", 1, 1, 4),
        ("declared", "", 1, 3, 3),
        ("delivered", "", 1, 1, 2),
        ("declared", "", 1, 3, 3),
        ("delivered", "", 1, 3, 4),
    ]
