"""Frames that are sound outside and not inside: each is refused once, in little memory, also after a restart."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import pytest

from reliamsg.config import MAX_HEADERS, MAX_MESSAGE_BYTES
from reliamsg.wire.data import CONTENT_TYPE, Records
from tests.consumer.test_journals import rows
from tests.consumer.tools import TOPIC, Bench, send, seqs
from tests.wire.bombs import bomb_named, bombs, sealed, squeezed

SIZE = 4 << 20
OTHERS = {
    "a body over the limit": sealed(msgspec.msgpack.encode(Records([bytes(MAX_MESSAGE_BYTES + 1)]))),
    "a reserved header": sealed(msgspec.msgpack.encode(Records([b"x"], None, [{"RM-seq": "9"}]))),
    "a header that clears screens": sealed(msgspec.msgpack.encode(Records([b"x"], None, [{"a": "\x1b[2J"}]))),
    "more headers than permitted": sealed(
        msgspec.msgpack.encode(Records([b"x"], None, [{f"h{n}": "v" for n in range(MAX_HEADERS + 1)}]))
    ),
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", gap_timeout=5.0)


def frame_named(name: str) -> bytes:
    if name in OTHERS:
        return OTHERS[name]
    bomb = bomb_named(name, SIZE)
    return squeezed(bomb.raw, count=bomb.count)


@pytest.mark.parametrize("name", [*(bomb.name for bomb in bombs(4 << 10)), *OTHERS])
def test_a_bad_frame_is_set_aside_and_the_next_good_one_comes(bench: Bench, name: str) -> None:
    raw = frame_named(name)
    tracemalloc.start()
    try:
        bench.network["dc1"].inject(TOPIC, raw, content_type=CONTENT_TYPE)
        send(bench.network["dc1"], 1, 3, producer="genuine")
        bench.settle()
        got = bench.take()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert {(m.producer, m.seq) for m in got} == {("genuine", n) for n in (1, 2, 3)}
    assert sum(bench.engine.sites["dc1"].rejected.values()) == 1
    assert peak < 6 * SIZE + 4_000_000


def test_one_that_was_persisted_is_refused_once(bench: Bench) -> None:
    """It waits in the inbox behind a gap; when its turn comes after a restart it is set aside, for good."""
    bomb = bomb_named("empty headers", SIZE)
    bench.network["dc1"].inject(TOPIC, squeezed(bomb.raw, count=1, seq=2), content_type=CONTENT_TYPE)
    bench.settle(1.0)
    bench.reopen()
    send(bench.network["dc1"], 1, 1, producer="evil", incarnation=7)
    bench.settle()
    assert seqs(bench.take()) == [1]
    assert bench.engine.sites["dc1"].rejected == {"undecodable": 1}
    for _ in range(2):
        bench.reopen()
        bench.settle()
        assert bench.take() == []
        assert bench.engine.sites["dc1"].rejected == {}
    assert len(rows(bench.path, "rejected")) == 1
    # The genuine one still counts.
    send(bench.network["dc2"], 2, 2, producer="evil", incarnation=7)
    bench.settle()
    assert seqs(bench.take()) == [2]


def test_what_an_ordinary_client_sent_is_not_bound_by_our_limits(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db")
    bench.settings["unsequenced"] = True
    bench.reopen()
    body, headers = bytes(MAX_MESSAGE_BYTES + 1), {f"h{n}": "v" for n in range(MAX_HEADERS + 9)}
    bench.network["dc1"].inject(TOPIC, body, headers={"RM-odd": "x", **headers})
    bench.settle()
    (message,) = bench.take(ack=False)
    assert message.body == body
    assert message.headers == {"RM-odd": "x", **headers}
    bench.reopen()
    (message,) = bench.take()
    assert message.body == body
