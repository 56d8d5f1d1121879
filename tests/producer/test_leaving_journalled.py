"""Nothing leaves the outbox before the journal says why it may: that it is published, or consumed."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from reliamsg.errors import OutboxWriteError
from reliamsg.protocol.ranges import RangeSet
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import read_journal
from tests.producer.control_tools import Bench, settled


@pytest.mark.parametrize("lengths", ["retain_seconds", "retain_bytes", "both"])
def test_what_leaves_was_journalled_as_published(lengths: str, tmp_path: Path, seed: int) -> None:
    """Batches of random sizes at random moments, so that some are confirmed in the step in which they are old, or too
    many. What a batch waits for is not that it is published, but that it is old: after an outage it is both at once."""
    rng = random.Random(seed)
    bench = Bench(tmp_path / "p.db", "dc1", "dc2")
    old: dict[str, Any] = (
        {"retain_seconds": rng.choice((0.0, 0.05, 0.5))} if lengths != "retain_bytes" else {}
    )
    many: dict[str, Any] = (
        {"retain_bytes": rng.choice((0, 100, 1_000))} if lengths != "retain_seconds" else {}
    )
    confirm = rng.choice(("all", "any"))
    engine = bench.open(
        hello_timeout=0, confirm=confirm, max_batch_messages=rng.choice((1, 5)), **old, **many
    )
    for number in range(150):
        bench.publish(engine, "t", *(b"%d" % number for _ in range(rng.randrange(1, 4))))
        if rng.random() < 0.05:
            bench.network[rng.choice(("dc1", "dc2"))].cut()
        bench.run(rng.choice((0.0, 0.003, 0.03, 0.3)))
    bench.run(5.0)
    bench.close(engine)
    published, released, last = RangeSet(), 0, 0
    with contextlib.closing(open_readonly(tmp_path / "p.db")) as connection:
        for row in read_journal(connection):
            last = max(last, row.last)
            if row.kind == "published":
                published.add(row.first, row.last)
            elif row.kind.startswith("released"):
                assert not published.missing(row.first, row.last), f"{row} is not journalled as published"
                released += row.last - row.first + 1
    assert not published.missing(1, last), "all was confirmed"
    assert released > last // 2, "nothing left, so that nothing was tried"


def test_what_a_group_was_done_with_is_journalled_before_it_is_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench.open({"t": ["g"]}, hello_timeout=0, release="consumed")
    bench.publish(engine, "t", b"1", b"2", b"3")
    bench.run(1.0)

    def full(*_: object) -> None:
        raise OutboxWriteError("disk full")

    monkeypatch.setattr(engine._outbox, "progress", full)
    bench.group("g").tell(settled(engine, "t", 2))
    bench.run(0.5)
    engine.remove_group("t", "g")
    bench.close(engine, crash=True)
    with contextlib.closing(open_readonly(bench.path)) as connection:
        told = [(row.kind, row.first, row.last) for row in read_journal(connection) if row.group == "g"]
    assert told == [("consumed", 1, 2), ("group_removed", 1, 1)]
