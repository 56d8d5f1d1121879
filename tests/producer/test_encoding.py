"""Batches as broker messages, and pages of the outbox: made, or read, once for sites that go side by side."""

from __future__ import annotations

import msgspec

from reliamsg.message import Stream
from reliamsg.producer import encoding, rows
from reliamsg.producer.encoding import Encoder
from reliamsg.producer.rows import PageCache
from reliamsg.store.rows import Row
from reliamsg.wire.data import Origin, Records, encode

STREAM = Stream("p", "t")


def row(number: int, count: int = 3, epoch: int = 5) -> Row:
    bodies = [b"%d" % n for n in range(count)]
    frame = encode(Origin(STREAM, epoch, 7), 1, (1, 1), Records(bodies))
    return Row(number, 1, STREAM, epoch, 7, 1, count, len(frame), 1, frame)


def test_a_plain_batch_is_encoded_once_for_all_sites() -> None:
    made = Encoder(True, None)
    first = made.encode(row(1), 1_000_000)
    assert [message.body for message in first] == [b"0", b"1", b"2"]
    assert [message.parts_left for message in first] == [2, 1, 0]
    assert made.encode(row(1), 1_000_000) is first


def test_a_batch_that_changed_is_encoded_anew() -> None:
    made = Encoder(True, None)
    made.encode(row(1), 1_000_000)
    again = made.encode(row(1, epoch=6), 1_000_000)
    assert again[0].headers is not None
    assert again[0].headers["rm-epoch"] == "6"
    assert len(made.encode(row(1, count=2), 1_000_000)) == 2


def test_few_plain_messages_are_kept() -> None:
    made = Encoder(True, None)
    for number in range(1, 20):
        made.encode(row(number, encoding.PLAIN_MESSAGES), 1_000_000)
    assert sum(len(found) for _, found in made._made.values()) <= encoding.KEPT_MESSAGES
    assert 19 in made._made
    made.encode(row(20, 2 * encoding.KEPT_MESSAGES), 1_000_000)
    assert list(made._made) == [20], "the latest is kept whatever its size"


def test_what_is_no_plain_batch_is_one_message_or_its_parts() -> None:
    whole = row(1, 100)
    (message,) = Encoder(False, None).encode(whole, 1_000_000)
    assert message.body == whole.frame
    parts = Encoder(False, None).encode(whole, len(whole.frame) // 2)
    assert len(parts) > 1
    assert [part.parts_left for part in parts] == list(range(len(parts) - 1, -1, -1))


class Outbox:
    """Rows of one stream, and what was asked for."""

    def __init__(self, numbers: range) -> None:
        self.rows = [msgspec.structs.replace(row(1), id=number) for number in numbers]
        self.asked: list[tuple[int, int | None]] = []

    def page(self, first: int, stream_id: int | None, max_bytes: int) -> list[Row]:
        self.asked.append((first, stream_id))
        found = [each for each in self.rows if each.id >= first]
        return found[: max(1, max_bytes // (rows.PAGE_BYTES // 4))]


def ids(found: list[Row]) -> list[int]:
    return [each.id for each in found]


def test_a_page_that_one_site_has_read_serves_the_others() -> None:
    outbox = Outbox(range(1, 100))
    cache = PageCache(outbox.page)
    assert ids(cache.page(1, None)) == [1, 2, 3, 4]
    assert ids(cache.page(5, None)) == [5, 6, 7, 8]
    assert ids(cache.page(1, None)) == [1, 2, 3, 4]
    assert ids(cache.page(7, None)) == [7, 8], "from where it is"
    assert outbox.asked == [(1, None), (5, None)]


def test_pages_over_a_hole_and_of_one_stream() -> None:
    outbox = Outbox(range(1, 100))
    del outbox.rows[1]
    cache = PageCache(outbox.page)
    cache.page(1, None)
    assert ids(cache.page(2, None)) == [3, 4, 5]
    cache.page(1, 1)
    cache.page(1, 1)
    assert outbox.asked == [(1, None), (1, 1), (1, 1)], "a stream's own pages are not shared"


def test_pages_are_read_again_once_rows_have_changed_and_only_the_latest_are_kept() -> None:
    outbox = Outbox(range(1, 100))
    cache = PageCache(outbox.page)
    cache.page(1, None)
    cache.clear()
    cache.page(1, None)
    assert len(outbox.asked) == 2
    for first in range(5, 5 + 4 * rows.CACHED_PAGES, 4):
        cache.page(first, None)
    cache.page(1, None)
    assert outbox.asked[-1] == (1, None)
    assert cache.page(1_000, None) == []
