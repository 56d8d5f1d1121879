"""The quarantine: committed before brokers forget, replayed as if it arrived again, and bounded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from reliamsg.consumer.intake import Forms, LaterVersion, Rejected, examine, installed_forms
from reliamsg.consumer.site import SiteReceiver
from reliamsg.consumer.status import status_of
from reliamsg.errors import QuarantineFull
from reliamsg.keys import KeyRing
from reliamsg.message import Prev, Stream
from reliamsg.store.quarantine import Selection
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Delivery
from reliamsg.wire.data import CONTENT_TYPE, Frame, Origin, encode, make_records, open_frame
from reliamsg.wire.plain import encode_plain
from tests.consumer.tools import TOPIC, Bench, frame, send, seqs


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", gap_timeout=5.0, sites=("dc1", "dc2"))


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Everything that arrives goes into quarantine."""

    def arrive(self: SiteReceiver, delivery: Delivery, frame: Frame, *_: object) -> bool:
        self.quarantine(delivery, frame, "test")
        return False

    monkeypatch.setattr(SiteReceiver, "_arrive", arrive)
    return monkeypatch


def test_what_is_quarantined_is_acknowledged_once_committed_and_survives(
    bench: Bench, refusing: pytest.MonkeyPatch
) -> None:
    for site in ("dc1", "dc2"):
        send(bench.network[site], 1, 5)
        send(bench.network[site], 6, 9)
    bench.settle()
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    found = bench.inbox.quarantine.select(Selection())
    assert [(one.first, one.last, one.reason) for one in found] == [(1, 5, "test"), (6, 9, "test")]
    used = bench.engine.shared.quarantine.total
    refusing.undo()
    bench.reopen()
    assert bench.take() == []
    assert bench.engine.shared.quarantine.total == used
    bench.engine.shared.quarantine.replay(Selection(reason="test"))
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 10))
    bench.settle(2.0)
    assert bench.inbox.quarantine.select(Selection()) == []
    assert bench.engine.shared.quarantine.total == 0


def test_a_crash_in_the_middle_of_a_replay_loses_nothing_and_goes_on(
    bench: Bench, refusing: pytest.MonkeyPatch
) -> None:
    send(bench.network["dc1"], 1, 5)
    send(bench.network["dc1"], 6, 9)
    bench.settle()
    refusing.undo()
    bench.engine.shared.quarantine.replay(Selection(stream=Stream("p", TOPIC)))
    bench.settle()
    taken = bench.take(3)
    assert seqs(taken) == [1, 2, 3]
    assert len(bench.inbox.quarantine.select(Selection())) == 2
    bench.reopen()
    bench.settle()
    rest = bench.take()
    assert sorted({*seqs(taken), *seqs(rest)}) == list(range(1, 10))
    assert [m.seq for m in rest if not m.redelivered and m.seq <= 3] == []
    bench.settle(2.0)
    assert bench.inbox.quarantine.select(Selection()) == []


def test_a_second_replay_is_a_duplicate(bench: Bench, refusing: pytest.MonkeyPatch) -> None:
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    refusing.undo()
    send(bench.network["dc2"], 1, 5)
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3, 4, 5]
    bench.engine.shared.quarantine.replay(Selection())
    bench.settle()
    assert bench.take() == []
    assert bench.inbox.quarantine.select(Selection()) == []


def test_a_full_quarantine_ends_reading_and_drops_nothing(
    tmp_path: Path, refusing: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "small.db")
    bench.settings["max_quarantine_bytes"] = 10_000
    bench.reopen(clean=True)
    for number in range(1, 31):
        send(bench.network["dc1"], number, number)
    bench.settle()
    errors = bench.engine.shared.health.take_errors()
    bench.engine.flush(bench.now)
    bench.network.run_pending()
    kept = len(bench.inbox.quarantine.select(Selection()))
    assert kept + bench.queued()["dc1"] == 30, "nothing is dropped"
    assert 5 <= kept < 30, "there is a limit"
    (error,) = errors
    assert isinstance(error, QuarantineFull)
    assert "p/orders" in str(error)


def test_one_reason_at_one_site_leaves_room_for_others(bench: Bench, refusing: pytest.MonkeyPatch) -> None:
    shared = bench.engine.shared
    send(bench.network["dc1"], 1, 1)
    bench.settle()
    frame = next(iter(bench.inbox.quarantine.select(Selection())))
    quarantine = shared.quarantine
    while quarantine._room.take("flood dc1", 1_000_000):
        pass
    assert quarantine.limit // 2 - 2_000_000 < quarantine.total <= quarantine.limit // 2 + frame.size + 512
    assert quarantine._room.take("other dc1", 1_000_000)


def _without_zstd(monkeypatch: pytest.MonkeyPatch) -> Forms:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    return installed_forms()


def _of_an_earlier_version(_: pytest.MonkeyPatch) -> Forms:
    return Forms(version=Forms().version - 1)


def _without_a_flag(_: pytest.MonkeyPatch) -> Forms:
    return Forms(flags=0)


@pytest.mark.parametrize("installed", [_without_zstd, _of_an_earlier_version, _without_a_flag])
def test_batches_that_this_installation_cannot_read_wait_for_one_that_can(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, installed: Callable[[pytest.MonkeyPatch], Forms]
) -> None:
    sent = [frame(first, first + 4, pad=500, compress=True) for first in (1, 6)]
    with monkeypatch.context() as patches:
        bench.settings["forms"] = installed(patches)
        bench.reopen()
        for site in ("dc1", "dc2"):
            for one in sent:
                bench.network[site].inject(TOPIC, one, content_type=CONTENT_TYPE)
        bench.settle()
        assert bench.take() == []
        assert bench.queued() == {"dc1": 0, "dc2": 0}
        kept = bench.inbox.quarantine.select(Selection())
        assert [(one.first, one.last, one.reason) for one in kept] == [
            (1, 5, "unreadable"), (6, 10, "unreadable"),
        ]  # fmt: skip
        assert bench.engine.sites["dc1"].rejected == {"unreadable": 2}
        assert status_of(bench.engine).quarantined == {"unreadable": 2}
        bench.reopen()
        bench.engine.shared.quarantine.replay(Selection())
        bench.settle()
        assert bench.take() == [], "it still can't read them"
        assert len(bench.inbox.quarantine.select(Selection())) == 2
        assert status_of(bench.engine).quarantined == {"unreadable": 2}
    del bench.settings["forms"]
    bench.reopen()
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    bench.settle(2.0)
    assert bench.inbox.quarantine.select(Selection()) == []
    assert status_of(bench.engine).quarantined == {}


def test_what_cannot_be_read_fills_a_gap_that_holds_its_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then, the gap is reported with its reason."""
    bench.rules["hold_gaps"] = True
    bench.reopen()
    send(bench.network["dc1"], 1, 2)
    bench.settle()
    assert seqs(bench.take()) == [1, 2]
    unreadable = frame(3, 4, pad=500, compress=True)
    with monkeypatch.context() as patches:
        _without_zstd(patches)
        bench.reopen()
        bench.network["dc1"].inject(TOPIC, unreadable, content_type=CONTENT_TYPE)
        send(bench.network["dc1"], 5, 6)
        bench.settle(20.0)
        assert bench.take() == []
        gap = status_of(bench.engine).streams[Stream("p", TOPIC)].gap
        assert gap is not None
        assert (gap.first, gap.last) == (3, 4)
        assert "p/orders lacks 3 to 4 of epoch 10: undecodable" in caplog.text
    bench.reopen()
    bench.settle()
    assert seqs(bench.take()) == [3, 4, 5, 6]


def _cannot_read(bench: Bench, *frames: bytes) -> None:
    """These arrive while the installation can't read them, and then it is upgraded."""
    bench.settings["forms"] = Forms(flags=0, version=0)
    bench.reopen()
    for one in frames:
        bench.network["dc1"].inject(TOPIC, one, content_type=CONTENT_TYPE)
    bench.settle()
    assert status_of(bench.engine).quarantined == {"unreadable": len(frames)}
    del bench.settings["forms"]
    bench.reopen()
    bench.settle()


def test_what_can_be_read_by_now_waits_for_room_for_its_stream(bench: Bench) -> None:
    bench.rules["max_streams"] = 1
    _cannot_read(bench, frame(1, 3, producer="p"), frame(1, 3, producer="q"))
    kept = status_of(bench.engine).quarantined
    assert kept == {"unreadable": 1, "too-many-streams": 1}, "nothing leaves before it is safe elsewhere"
    (first,) = {message.id.producer for message in bench.take()}
    bench.settle(5.0)
    (second,) = {"p", "q"} - {first}
    assert [(message.id.producer, message.seq) for message in bench.take()] == [
        (second, 1), (second, 2), (second, 3),
    ]  # fmt: skip
    bench.settle(5.0)
    assert status_of(bench.engine).quarantined == {}


def test_what_can_be_read_by_now_waits_for_its_producer_if_its_epoch_is_far(bench: Bench) -> None:
    far = 2**50
    _cannot_read(bench, frame(1, 3, epoch=far))
    assert bench.take() == []
    assert status_of(bench.engine).quarantined == {"far-epoch": 1}
    bench.engine.shared.quarantine.replay(Selection(stream=Stream("p", TOPIC)))
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3], "an operator has vouched for it"


def test_what_can_be_read_by_now_waits_for_the_epochs_before_it(bench: Bench) -> None:
    """A stream takes in 32 epochs beyond the current one."""
    gap = [
        frame(1, 1, epoch=10 * n, incarnation=n, prev=Prev(10 * n - 5, n + 1_000, 1)) for n in range(2, 40)
    ]
    _cannot_read(bench, frame(1, 1, epoch=5, incarnation=1), *gap)
    assert seqs(bench.take()) == [1]
    bench.settle()
    waits = status_of(bench.engine).quarantined
    assert waits.keys() == {"too-many-streams"}


@pytest.mark.parametrize("room", [True, False])
def test_what_the_inbox_can_no_longer_read_waits_in_quarantine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """The extra zstd was there when it arrived, and is missing when the inbox is opened again."""
    bench.rules["hold_gaps"] = True
    bench.reopen()
    send(bench.network["dc1"], 1, 1)
    bench.settle()
    assert seqs(bench.take()) == [1]
    fill, held = frame(2, 2), frame(3, 5, pad=500, compress=True)
    bench.network["dc1"].inject(TOPIC, held, content_type=CONTENT_TYPE)
    bench.settle(10.0)
    assert bench.queued() == {"dc1": 0, "dc2": 0}, "the inbox has it"
    with monkeypatch.context() as patches:
        _without_zstd(patches)
        if not room:
            bench.settings["max_quarantine_bytes"] = 16
        bench.reopen()
        bench.network["dc1"].inject(TOPIC, fill, content_type=CONTENT_TYPE)
        bench.settle()
        if room:
            assert seqs(bench.take()) == [2]
            bench.settle(2.0)
            assert status_of(bench.engine).quarantined == {"unreadable": 1}
        else:
            with pytest.raises(QuarantineFull):
                bench.take()
    bench.settings.clear()
    bench.reopen()
    bench.settle()
    assert seqs(bench.take())[-3:] == [3, 4, 5]


# -- a later version of the whole format ----------------------------------------------------------------------


def _magic(bench: Bench, magic: bytes | None, seconds: float = 0.02) -> None:
    """Open the inbox with an installation that knows no later version than this one. `seconds`: until it reads."""
    if magic is None:
        bench.settings.pop("forms", None)
    else:
        bench.settings["forms"] = Forms(magic=magic)
    bench.settle(seconds)
    bench.reopen()
    bench.settle(seconds)


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_a_batch_in_a_later_format_waits_for_an_installation_that_knows_it(
    tmp_path: Path, protocol: Literal["amqp", "mqtt"]
) -> None:
    network = MemoryNetwork("dc1", "dc2", threaded=False, protocol=protocol)
    bench = Bench(tmp_path / "inbox.db", network=network, gap_timeout=5.0)
    reads_after = 60.0 if protocol == "mqtt" else 0.02
    _magic(bench, b"RMB0", reads_after)
    sent = [frame(first, first + 4, pad=500) for first in (1, 6)]
    for site in ("dc1", "dc2"):
        for one in sent:
            bench.network[site].inject(TOPIC, one, content_type=CONTENT_TYPE)
    bench.settle()
    assert bench.take() == []
    assert bench.queued() == {"dc1": 0, "dc2": 0}, "brokers may forget them"
    kept = bench.inbox.quarantine.select(Selection())
    assert [(one.reason, one.stream, one.size) for one in kept] == [
        ("later-version", Stream("", TOPIC), len(one)) for one in sent
    ], "whole, and once for both sites"
    assert status_of(bench.engine).quarantined == {"later-version": 2}
    assert bench.engine.sites["dc1"].rejected == {"later-version": 2}
    _magic(bench, b"RMB0", reads_after)
    assert status_of(bench.engine).quarantined == {"later-version": 2}, "it still can't read them"
    _magic(bench, None, reads_after)
    assert seqs(bench.take()) == list(range(1, 11))
    bench.settle(2.0)
    assert status_of(bench.engine).quarantined == {}
    assert bench.inbox.quarantine.select(Selection()) == []


def test_formats_that_are_not_later_are_unusable(bench: Bench) -> None:
    data = frame(1, 1)
    for magic in (b"RMB0", b"RMBx", b"RMB:", b"RMC2"):
        bench.network["dc1"].inject(TOPIC, magic + data[4:], content_type=CONTENT_TYPE)
    bench.settle()
    assert status_of(bench.engine).quarantined == {}
    assert sum(bench.engine.sites["dc1"].rejected.values()) == 4


def test_what_turns_out_to_be_unusable_leaves_the_quarantine_as_a_sample(bench: Bench) -> None:
    _magic(bench, b"RMB0")
    damaged, twice, unknown = bytearray(frame(1, 1)), frame(2, 2), frame(3, 3, pad=500, compress=True)
    damaged[-1] ^= 1
    for one in (bytes(damaged), twice, unknown):
        bench.network["dc1"].inject(TOPIC, one, content_type=CONTENT_TYPE)
    bench.settle()
    assert status_of(bench.engine).quarantined == {"later-version": 3}
    bench.settings["forms"] = Forms(flags=0)
    bench.reopen()
    bench.network["dc1"].inject(TOPIC, frame(1, 1), content_type=CONTENT_TYPE)
    bench.settle()
    assert seqs(bench.take()) == [1, 2]
    bench.settle(2.0)
    (left,) = bench.inbox.quarantine.select(Selection())
    assert (left.reason, left.stream, left.first) == ("unreadable", Stream("p", TOPIC), 3)
    samples = bench.inbox.quarantined()
    assert samples.keys() == {("dc1", TOPIC)}
    _magic(bench, None)
    assert seqs(bench.take()) == [3]


def test_a_later_format_that_is_stored_already_under_its_own_name_is_stored_once(bench: Bench) -> None:
    one = frame(1, 3, pad=500, compress=True)
    bench.settings["forms"] = Forms(flags=0)
    bench.reopen()
    bench.network["dc1"].inject(TOPIC, one, content_type=CONTENT_TYPE)
    bench.settle()
    _magic(bench, b"RMB0")
    bench.network["dc2"].inject(TOPIC, one, content_type=CONTENT_TYPE)
    bench.settle()
    assert status_of(bench.engine).quarantined == {"unreadable": 1, "later-version": 1}
    bench.settings["forms"] = Forms(flags=0)
    bench.reopen()
    bench.settle()
    assert status_of(bench.engine).quarantined == {"unreadable": 1}
    total = bench.engine.shared.quarantine.total
    assert total == len(one) + 512, "room was given back"
    _magic(bench, None)
    assert seqs(bench.take()) == [1, 2, 3]


@pytest.mark.parametrize("signed", [False, True])
def test_later_formats_that_find_no_room(bench: Bench, signed: bool) -> None:
    """Without keys nothing is dropped. With keys anybody may have sent them, and nobody may stop the consumer."""
    bench.settings |= {"max_quarantine_bytes": 1_000_000, "forms": Forms(magic=b"RMB0")}
    if signed:
        bench.settings["keys"] = KeyRing({"k": b"0123456789abcdef0123456789abcdef"}, sign_with="k")
    bench.reopen()
    for number in range(30):
        bench.network["dc1"].inject(
            TOPIC, frame(number + 1, number + 1, pad=50_000), content_type=CONTENT_TYPE
        )
        bench.settle()
    kept = status_of(bench.engine).quarantined["later-version"]
    assert 5 <= kept < 15
    fatal = bench.engine.shared.health.fatal
    rejected = bench.engine.sites["dc1"].rejected
    if signed:
        assert fatal is None
        assert rejected == {"later-version": kept, "unsigned": 30 - kept}
        assert bench.queued()["dc1"] == 0
    else:
        assert isinstance(fatal, QuarantineFull)
        assert "Install a later version of reliamsg" in str(fatal)
        assert bench.queued()["dc1"] > 0


@pytest.mark.parametrize("body", [b"RMB", b"RMB1 is a product", b"RMB9 as well", b"RMC1"])
def test_a_plain_message_may_begin_like_a_batch(body: bytes) -> None:
    records = make_records([body], [None], [{}])
    (message,) = encode_plain(open_frame(encode(Origin(Stream("p", TOPIC), 7, 9), 1, (5, 5), records)))
    found = examine(Delivery(1, TOPIC, body, None, message.headers), {TOPIC: (TOPIC, 0)}, 1_000_000)
    assert isinstance(found, Frame)
    assert found.records().bodies == [body]


def test_a_later_format_at_a_foreign_address_is_rejected(bench: Bench) -> None:
    data = b"RMB2" + frame(1, 1)[4:]
    topics = {TOPIC: (TOPIC, 0)}
    found = examine(Delivery(1, "elsewhere", data, CONTENT_TYPE), topics, 1_000_000)
    assert found == Rejected("wrong-topic")
    assert examine(Delivery(1, TOPIC, data, None), topics, 1_000_000) == LaterVersion(TOPIC, 0)
