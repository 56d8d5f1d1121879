"""What waits for its commit: in batches of a bounded size, each stored on its own, in the order of publishing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reliamsg.errors import FatalError, OutboxFull
from reliamsg.producer import accumulator
from reliamsg.producer.commit import Content
from reliamsg.producer.receipt import Receipt
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.store.rows import Row
from tests.producer.control_tools import Bench

SMALL = 1_000


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(accumulator, "COMMIT_BYTES", SMALL)
    return Bench(tmp_path / "outbox.db")


def accept(bench: Bench, count: int) -> list[Receipt]:
    """Publish single messages and lists in turn, without a step of the writer."""
    engine = bench.engines[-1]
    receipts = []
    for number in range(0, count, 4):
        bodies = [b"%d" % each for each in range(number, number + 4)]
        receipts.append(engine.accumulator.accept_one("t", bodies[0]))
        receipts.append(engine.accumulator.accept(Content("t", bodies[1:], None, None, 100)))
    return receipts


def test_large_batches_are_stored_one_after_the_other(bench: Bench) -> None:
    engine = bench.open(hello_timeout=0)
    receipts = accept(bench, 200)
    assert len(engine.accumulator.open_batches) > 5
    assert engine.accumulator.messages == 200
    engine.step()
    assert receipts[0].durable
    assert not receipts[-1].durable, "one batch at a step, so that reading goes on between them"
    bench.run()
    assert all(receipt.durable for receipt in receipts)
    assert engine.accumulator.empty
    assert [int(body) for _, _, body in bench.sinks["dc1"].messages] == list(range(200))


def test_all_batches_count_for_the_room(bench: Bench) -> None:
    engine = bench.open(hello_timeout=0, max_bytes=5 * SMALL)
    with pytest.raises(OutboxFull, match=r"^4\d{3} bytes wait"):
        accept(bench, 200)
    assert engine.accumulator.messages < 100


def test_the_last_act_stores_all_batches(bench: Bench) -> None:
    engine = bench.open(hello_timeout=0)
    bench.network["dc1"].down()
    receipts = accept(bench, 200)
    bench.close(engine)
    assert all(receipt.durable for receipt in receipts)
    assert inspect_outbox(bench.path).messages == 200


def test_batches_that_will_not_be_stored_say_so(bench: Bench) -> None:
    engine = bench.open(hello_timeout=0)
    receipts = accept(bench, 200)
    error = FatalError("the disk is gone")
    engine.accumulator.fail(error)
    assert {receipt.commit.error for receipt in receipts} == {error}
    assert engine.accumulator.empty


def test_nothing_is_durable_before_it_is_committed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = bench.open(hello_timeout=0)
    (receipt, *_) = accept(bench, 4)
    seen: list[tuple[bool, bool]] = []
    append = engine._outbox.append

    def appended(*arguments: Any) -> list[Row]:
        before = receipt.durable
        rows = append(*arguments)
        seen.append((before, receipt.durable))
        return rows

    monkeypatch.setattr(engine._outbox, "append", appended)
    engine.step()
    assert seen == [(False, False)]
    assert receipt.durable
