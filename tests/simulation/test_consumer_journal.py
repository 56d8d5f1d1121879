"""What the judge learns from journals of running simulated consumers."""

from __future__ import annotations

from pathlib import Path

from reliamsg.message import MessageId, Stream
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.world import World
from reliamsg.store.journal import Entry, Journal

STREAM = Stream("p1", "orders")


def test_a_row_that_grew_after_it_was_read_is_read_again(tmp_path: Path) -> None:
    """Journals extend their newest row of a stream in place. Messages that a consumer had acknowledged durably before
    it terminated must not be redelivered, and are not waited for."""
    world = World(draw(1, 10, ()), tmp_path)
    consumer = world.consumers[0]
    oracle, group = world.oracle, consumer.group
    messages = [MessageId("p1", 5, "orders", 0, seq) for seq in range(1, 31)]
    consumer.drive.format()
    journal = Journal("boot")
    for first, last in ((1, 10), (11, 20), (21, 30)):
        with consumer.drive.connect(consumer.drive.path) as connection:
            at = int(world.scheduler.now * 1e6)
            entries = [Entry("acknowledged", STREAM, 5, 7, first, last, group=group)]
            if first == 11:
                entries.append(Entry("opened", group=group))
            journal.write(connection, entries, at, at)
        journal.settle(True)
        connection.close()
        oracle.became_indeterminate(group, messages[: last + 3])
        consumer.journal.report()
        assert oracle.indeterminate[group] == set(messages[last : last + 3])
        assert oracle.acked[group] == set(messages[:last])
    assert journal.newest_lsn == 2, "the row grew"
