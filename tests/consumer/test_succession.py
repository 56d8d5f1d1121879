"""Which of a group's inboxes reads, between in-memory sites and on simulated clocks: never two."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.site import SiteReceiver
from reliamsg.errors import GroupBusy
from reliamsg.message import Message, Prev
from reliamsg.store.inbox import Inbox
from reliamsg.testing import MemoryBroker, MemoryNetwork
from reliamsg.transport.base import Binding
from reliamsg.transport.memory.broker import Refused
from reliamsg.transport.memory.receiver import MemoryReceiver
from reliamsg.transport.memory.session import MemorySession
from reliamsg.wire.address import group_address
from reliamsg.wire.control import StreamState
from reliamsg.wire.limits import CHALLENGE_BYTES
from tests.consumer.control_tools import FakeProducer, rows
from tests.consumer.tools import GROUP, TOPIC, Bench, send, seqs

KINDS = ["amqp", "mqtt", "mixed"]


def share_sessions(broker: MemoryBroker) -> None:
    """Whoever connects gets the messages; the connections of others stay."""
    connect = type(broker).connect_receiver

    def connect_receiver(client: str, wake: Callable[[], None], bindings: Iterable[Binding]) -> Any:
        broker.keep_readers()
        return connect(broker, client, wake, bindings)

    broker.connect_receiver = connect_receiver  # type: ignore[method-assign]


def cut_off(broker: MemoryBroker, from_reading: set[str], from_all: set[str]) -> None:
    """Inboxes whose names are in these do not reach the broker."""
    connect_sender, connect_receiver = broker.connect_sender, broker.connect_receiver

    def look(wake: Any, cut: set[str]) -> None:
        if wake.__self__._events._site.shared.inbox.id in cut:
            raise Refused("cut off")

    def as_sender(client: str, wake: Callable[[], None]) -> Any:
        look(wake, from_all)
        return connect_sender(client, wake)

    def as_receiver(client: str, wake: Callable[[], None], bindings: Iterable[Binding]) -> Any:
        look(wake, from_reading | from_all)
        return connect_receiver(client, wake, bindings)

    broker.connect_sender = as_sender  # type: ignore[method-assign]
    broker.connect_receiver = as_receiver  # type: ignore[method-assign]


def by_inbox(path: Path) -> list[str]:
    """Two members' names, the one whose inbox has the lower name first."""
    found = []
    for name in ("a", "b"):
        inbox = Inbox(path / f"{name}.db", GROUP)
        found.append((inbox.id, name))
        inbox.close()
    return [name for _, name in sorted(found)]


class Group:
    """Several inboxes of one group, each in a process of its own as far as they can tell."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        protocol: Any = {"dc1": "amqp", "dc2": "mqtt"} if kind == "mixed" else kind
        self.network = MemoryNetwork("dc1", "dc2", protocol=protocol, threaded=False)
        for broker in self.network.brokers.values():
            broker.takes_over = True
        self.members: list[Bench] = []
        self.stopped: set[Bench] = set()

    def join(self, *, standby: bool = False, name: str | None = None, **settings: Any) -> Bench:
        bench = Bench.__new__(Bench)
        bench.path = self.path / f"{name or len(self.members)}.db"
        bench.now = max([100.0, *(each.now for each in self.members)])
        bench.rules = {"gap_timeout": 5.0, **settings.pop("rules", {})}
        bench.network = self.network
        bench.settings = {"standby": standby, "takeover_timeout": 8.0, **settings}
        bench.points = []
        self.members.append(bench)
        bench.open()
        return bench

    def join_both(self, **settings: Any) -> tuple[Bench, Bench]:
        """One that reads, and then a standby, with such `settings`."""
        first = self.join()
        self.settle(0.5)
        return first, self.join(standby=True, **settings)

    def settle(self, seconds: float, step: float = 0.05) -> None:
        """Let all members that are not stopped run, side by side; never do two of them hand out."""
        for _ in range(round(seconds / step)):
            for bench in self.members:
                if bench not in self.stopped:
                    bench.settle(step)
                else:
                    bench.now += step
            assert len(self.readers()) <= 1, [b.engine.standby.phase for b in self.members]

    def readers(self) -> list[Bench]:
        return [b for b in self.members if b.engine.shared.role.holds and not b.engine.shared.role.locked_out]

    def stop(self, bench: Bench) -> None:
        """As SIGSTOP does. Its connections stay."""
        self.stopped.add(bench)
        for site in bench.engine.sites.values():
            for link in site.connections.all:
                assert isinstance(link, MemorySession)
                link.pause()

    def drop(self, bench: Bench) -> None:
        """Brokers notice that nothing comes from it; with a session that is taken over it would be the same."""
        for site in bench.engine.sites.values():
            if site.connections.transport is not None:
                self.network[site.name].drop(site.connections.transport._connection, "no heartbeat")  # type: ignore[attr-defined]

    def go_on(self, bench: Bench) -> None:
        self.stopped.discard(bench)
        for site in bench.engine.sites.values():
            for link in site.connections.all:
                assert isinstance(link, MemorySession)
                link.resume()

    def leave(self, bench: Bench) -> None:
        """Close one as consumers are closed: it says goodbye."""
        self.members.remove(bench)
        bench.engine.flush(bench.now)
        bench.engine.say_goodbye(bench.now)
        bench.close()

    def kill(self, bench: Bench) -> None:
        self.members.remove(bench)
        for site in bench.engine.sites.values():
            for link in [*site.connections.all, *site.connections.given_up]:
                link.kill()  # type: ignore[union-attr]
        self.network.run_pending()
        bench.inbox.close()


@pytest.fixture(params=KINDS)
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Group:
    return Group(tmp_path, request.param)


def phase(bench: Bench) -> str:
    return bench.engine.standby.phase


def test_a_consumer_alone_reads_soon(group: Group) -> None:
    bench = group.join()
    group.settle(0.5)
    assert phase(bench) == "active"
    assert group.readers() == [bench]
    assert {site.state for site in bench.engine.sites.values()} == {"connected"}


def test_a_standby_alone_waits_for_as_long_as_another_might_be_silent(group: Group) -> None:
    bench = group.join(standby=True)
    group.settle(7.5)
    assert phase(bench) == "waiting"
    assert {site.state for site in bench.engine.sites.values()} == {"listening"}
    group.settle(2.0)
    assert group.readers() == [bench]


def test_a_standby_waits_for_as_long_as_the_one_that_reads_may_go_on(group: Group) -> None:
    """Whose proofs last longer, since its time-out is another one."""
    first = group.join(takeover_timeout=20.0)
    group.settle(0.5)
    second = group.join(standby=True)
    group.settle(3.0)
    group.stop(first)
    group.drop(first)
    group.settle(17.0)
    assert phase(second) == "waiting"
    group.settle(4.0)
    assert group.readers() == [second]


def test_so_does_one_that_is_no_standby_and_does_not_give_up_before(group: Group) -> None:
    first = group.join(takeover_timeout=20.0)
    group.settle(0.5)
    second = group.join()
    group.settle(0.2)
    group.kill(first)
    group.settle(17.0)
    assert phase(second) != "active"
    group.settle(4.0)
    assert group.readers() == [second]


def test_a_standby_takes_over_from_one_that_is_killed(group: Group) -> None:
    first, second = group.join_both()
    producer = FakeProducer(first)
    for site in ("dc1", "dc2"):
        send(group.network[site], 1, 100)
    group.settle(0.1)
    got = first.take(50)
    assert seqs(got) == list(range(1, 51))
    group.settle(1.0)
    assert seqs(first.take(10, ack=False)) == list(range(51, 61))
    group.settle(1.0)  # 51 to 100 are in the first one's inbox now, and at no broker
    assert sum(b.queued() for b in group.network.brokers.values()) == 0
    group.kill(first)
    group.settle(7.5)
    assert group.readers() == []
    group.settle(2.0)
    assert group.readers() == [second]
    producer.bench = second
    producer.streams()
    producer.status((1, 100))
    group.settle(2.0)
    wanted = [stream.wanted for stream in producer.streams() if stream.wanted]
    assert wanted[0] == [(10, 51, 100)]
    producer.repair(51, 100)
    group.settle(0.1)
    again = second.take()
    assert seqs(again) == list(range(51, 101))
    assert all(message.redelivered for message in again[:10])
    took_over = rows(second, "took_over")[0].detail
    assert took_over is not None
    assert took_over["from"] == first.engine.shared.role.lease.inbox


@pytest.mark.parametrize("ended", ["renewed", "lost"])
def test_a_session_is_kept_before_the_first_proof_if_its_own_client_renews_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """A broker that sends more than is taken makes an inbox renew its connection, perhaps before its first heartbeat
    has come back. If it took that for a lost session, it would wait ``takeover_timeout`` after every few messages."""
    group = Group(tmp_path, "mqtt")
    first, second = group.join_both()
    group.settle(0.5)
    lease = second.engine.shared.role.lease
    group.kill(first)
    group.settle(7.0)
    monkeypatch.setattr(lease, "came_back", lambda *heartbeat: False)
    while phase(second) != "active":
        group.settle(0.05)
    group.settle(0.5)
    assert lease.demanding
    if ended == "lost":
        group.drop(second)
    else:
        for site in second.engine.sites.values():
            assert isinstance(site.connections.transport, MemoryReceiver)
            site.connections.transport.reconnect("there is room again")
            site.connections.transport.step()
    group.settle(0.5)
    assert phase(second) == ("active" if ended == "renewed" else "waiting")
    monkeypatch.undo()
    if ended == "renewed":
        group.settle(2.0)
        assert group.readers() == [second]
        assert {site.state for site in second.engine.sites.values()} == {"connected"}


def test_a_standby_takes_over_at_once_from_one_that_is_closed(group: Group) -> None:
    first, second = group.join_both()
    send(group.network["dc1"], 1, 100)
    group.settle(0.2)
    assert len(first.take()) == 100
    group.leave(first)
    group.settle(3.0)
    assert group.readers() == [second]
    send(group.network["dc2"], 91, 110)
    group.settle(0.5)
    assert seqs(second.take()) == list(range(101, 111))


@pytest.mark.parametrize("end", ["killed", "closed", "closed unheard"])
def test_a_standby_knows_how_far_one_was_that_read_for_a_moment_only(group: Group, end: str) -> None:
    """The standby's own heartbeats are too far apart to be heard in that time."""
    second = group.join(standby=True, takeover_timeout=40.0)
    group.settle(1.0)
    first = group.join(takeover_timeout=40.0)
    if end == "closed unheard":  # what the standby says is lost
        for site in second.engine.sites.values():
            site.send_control = lambda *_: False  # type: ignore[method-assign]
    group.settle(0.4)
    send(group.network["dc1"], 1, 100)
    group.settle(0.2)
    assert seqs(first.take(50)) == list(range(1, 51))
    group.settle(0.3)
    if end == "killed":
        group.kill(first)
        group.settle(45.0, step=0.25)
    else:
        group.leave(first)
        for site in second.engine.sites.values():
            vars(site).pop("send_control", None)
        group.settle(8.0)
    assert group.readers() == [second]
    took_over = rows(second, "took_over")[0].detail
    assert took_over is not None
    assert took_over["streams"] == 1
    send(group.network["dc2"], 41, 60)
    group.settle(0.5)
    assert seqs(second.take()) == list(range(51, 61))


@pytest.mark.parametrize("ends", ["killed", "closed", "closed, one site deaf", "closed, taken over late"])
def test_a_mark_at_the_position_tells_nothing_without_a_goodbye_that_is_followed_at_once(
    group: Group, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other inbox may have gone on with the stream, and had no time to tell another one; or somebody began to read
    after the goodbye, where the standby heard nothing."""
    first, second = group.join_both()
    group.settle(1.0)
    control = first.engine.control
    left = StreamState(TOPIC, 0, (10, 11), (10, 77), 11, [], [], [], [])
    control._send_state(control._state(group_address(GROUP), "p", "active", control._nonce, [left]))
    group.settle(0.1)
    if ends == "killed":
        group.kill(first)
        group.settle(9.0)
    else:
        if ends == "closed, one site deaf":
            second.engine.sites["dc2"].echoes_since = None
        elif ends == "closed, taken over late":
            monkeypatch.setattr("reliamsg.consumer.standby.PROMPT_S", -1.0)
        group.leave(first)
        group.settle(3.0)
    assert group.readers() == [second]
    send(group.network["dc2"], 11, 20)
    group.settle(0.5)
    got = second.take()
    assert seqs(got) == list(range(11, 21))
    assert {message.redelivered for message in got} == {ends != "closed"}


def test_one_that_was_stopped_hands_out_nothing_when_it_goes_on(group: Group) -> None:
    first, second = group.join_both()
    send(group.network["dc1"], 1, 100)
    group.settle(0.2)
    chunk = first.engine.deliveries.take(1, 100)
    assert isinstance(chunk, DeliverySlice)
    assert [m.seq for m in itertools.islice(iter(chunk.next, None), 10) if m] == list(range(1, 11))
    group.stop(first)
    group.drop(first)
    group.settle(12.0)
    assert group.readers() == [second]
    assert not first.engine.shared.role.holds
    assert first.engine.deliveries.take_more(chunk, 1, 10) is None
    group.go_on(first)
    group.settle(6.0)
    assert group.readers() == [second]
    group.settle(6.0)
    assert isinstance(first.engine.shared.health.fatal, GroupBusy)
    assert second.engine.shared.health.fatal is None


def test_one_that_was_stopped_and_kept_its_connections_goes_on(group: Group) -> None:
    first, second = group.join_both(takeover_timeout=80.0)
    group.stop(first)
    group.settle(12.0)
    assert not first.engine.shared.role.holds
    group.go_on(first)
    group.settle(1.0)
    assert group.readers() == [first]
    assert phase(second) == "waiting"


@pytest.mark.parametrize("lower", ["first", "second"])
def test_one_that_was_stopped_and_reads_without_the_session_hands_out_nothing(
    tmp_path: Path, lower: str
) -> None:
    """A broker that does not give out a group's session lets it be read under other names: nobody's connection ends
    when another takes over. Whoever has taken over reads on, whichever inbox has the lower name."""
    group = Group(tmp_path, "mqtt")
    for broker in group.network.brokers.values():
        share_sessions(broker)
    names = by_inbox(tmp_path)
    if lower == "second":
        names.reverse()
    first = group.join(name=names[0])
    group.settle(0.5)
    second = group.join(standby=True, name=names[1])
    group.settle(1.0)
    group.stop(first)
    group.settle(14.0)
    assert group.readers() == [second]
    assert {site.state for site in first.engine.sites.values()} == {"connected"}
    group.go_on(first)
    for _ in range(100):
        # All that waited for it comes in before it looks up: the other's heartbeats, and then its own.
        first.engine.control.say(first.now)
        group.network.run_pending()
        assert not first.engine.shared.role.holds
        group.settle(0.05)
        assert group.readers() == [second]


def test_one_that_was_stopped_does_not_trust_at_once_in_a_session_without_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where control frames never pass a session must do, once it has lasted; while it was stopped it may have ended."""
    group = Group(tmp_path, "mqtt")
    first = group.join()
    group.settle(0.5)
    monkeypatch.setattr(first.engine.control, "received", lambda *told: None)
    for site in first.engine.sites.values():
        site.ever_echoed = site.ever_heard = False
    first.engine.shared.role.lease.demand()
    group.stop(first)
    group.settle(5.0)
    group.go_on(first)
    group.settle(1.0)
    assert group.readers() == []
    group.settle(4.0)
    assert group.readers() == [first]


@pytest.mark.parametrize("kind", ["amqp", "mqtt"])
@pytest.mark.parametrize("heard", ["nothing", "a status", "a copy of a status"])
def test_where_others_are_heard_and_an_inbox_never_hears_itself_nothing_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, heard: str
) -> None:
    """It may be cut off one way, and its lock, or session, gone. Where nothing is ever heard these must do."""
    send = SiteReceiver.send_control
    monkeypatch.setattr(
        SiteReceiver, "send_control", lambda site, *frame: site.name == "dc1" and send(site, *frame)
    )
    group = Group(tmp_path, kind)
    first = group.join()
    group.settle(3.0)
    assert group.readers() == [first]
    if heard != "nothing":
        FakeProducer(first).status((1, 10), site="dc2" if heard == "a status" else None)
    group.network["dc1"].down()
    group.settle(12.0)
    assert first.engine.sites["dc2"].state == "connected"
    assert group.readers() == ([first] if heard == "nothing" else [])


def hand_out_untold(group: Group) -> tuple[Bench, Bench, FakeProducer]:
    """One that reads hands out five of ten messages, and can't tell that to its standby."""
    first, second = group.join_both()
    producer = FakeProducer(first)
    group.settle(1.0)
    for broker in group.network.brokers.values():
        broker.block("nothing is told any more")
    send(group.network["dc1"], 1, 10)
    group.settle(0.1)
    assert seqs(first.take(5, ack=False)) == [1, 2, 3, 4, 5]
    return first, second, producer


def test_what_the_one_before_handed_out_in_its_last_moment_is_flagged(group: Group) -> None:
    first, second, producer = hand_out_untold(group)
    group.kill(first)
    for broker in group.network.brokers.values():
        broker.unblock()
    group.settle(12.0)
    assert group.readers() == [second]
    producer.bench = second
    mine, other = (bench.engine.shared.role.lease.inbox for bench in (second, first))
    for heard in (None, (other, 10**18), (mine, 1)):
        producer.status((1, 3), to=group_address(GROUP), heard=heard)  # which was late
    producer.status((1, 10))
    group.settle(2.0)
    producer.repair(1, 10)  # they were in the first one's inbox
    group.settle(0.1)
    again = second.take()
    assert seqs(again) == list(range(1, 11))
    assert all(message.redelivered for message in again)
    producer.status((1, 10), to=group_address(GROUP), heard=(mine, producer.states()[-1].number))
    send(group.network["dc1"], 11, 20)
    group.settle(0.1)
    assert [(m.seq, m.redelivered) for m in second.take()] == [(n, False) for n in range(11, 21)]


@pytest.mark.parametrize("ends", ["after taking over", "while waiting"])
def test_that_another_may_have_handed_out_more_outlives_a_kill(group: Group, ends: str) -> None:
    """Also of a stream of which the successor knew nothing yet."""
    first, second, producer = hand_out_untold(group)
    if ends == "while waiting":
        group.kill(second)
    group.kill(first)
    for broker in group.network.brokers.values():
        broker.unblock()
    if ends == "after taking over":
        group.settle(12.0)
        assert group.readers() == [second]
        assert not second.engine.shared.core.streams
        group.kill(second)
    for epoch in (10, 11):  # each in a life of its own, and without a word of the producer
        second = group.join(name="1")
        group.settle(12.0)
        assert group.readers() == [second]
        producer.bench, producer.epoch = second, epoch
        producer.repair(1, 10, prev=Prev(10, 77, 10) if epoch > 10 else None)
        group.settle(0.1)
        got = second.take()
        assert [(m.epoch, m.redelivered) for m in got][-10:] == [(epoch, True)] * 10
        group.kill(second)
    second = group.join(name="1")
    group.settle(2.0)
    producer.bench = second
    heard = second.engine.shared.role.lease.inbox, producer.states()[-1].number
    producer.status((10, 77, 1, 10), (11, 77, 1, 10), to=group_address(GROUP), heard=heard)
    group.settle(2.0)
    group.kill(second)
    second = group.join(name="1")
    send(group.network["dc1"], 1, 10, epoch=12, prev=Prev(11, 77, 10))
    group.settle(2.0)
    assert [(m.epoch, m.redelivered) for m in second.take()][-10:] == [(12, False)] * 10


def test_a_standby_can_not_know_that_no_other_came_before(group: Group) -> None:
    """One that was cut off from here may have read, and be gone."""
    for _ in range(2):
        group.join(standby=True)
    send(group.network["dc1"], 1, 10)  # to nobody yet, where there are no queues
    group.settle(20.0)
    send(group.network["dc1"], 1, 10)
    group.settle(0.2)
    (reader,) = group.readers()
    producer = FakeProducer(reader)
    assert [(m.seq, m.redelivered) for m in reader.take()] == [(n, True) for n in range(1, 11)]
    group.settle(2.0)
    heard = reader.engine.shared.role.lease.inbox, producer.states()[-1].number
    producer.status((1, 10), to=group_address(GROUP), heard=heard)
    group.settle(0.1)
    send(group.network["dc1"], 11, 20)
    group.settle(0.2)
    assert [(m.seq, m.redelivered) for m in reader.take()] == [(n, False) for n in range(11, 21)]


def test_a_second_consumer_gives_up(group: Group) -> None:
    first = group.join()
    group.settle(0.5)
    second = group.join()
    group.settle(7.0)
    assert second.engine.shared.health.fatal is None
    assert not second.engine.shared.role.holds or second.engine.shared.role.locked_out
    group.settle(3.0)
    assert isinstance(second.engine.shared.health.fatal, GroupBusy)
    assert group.readers() == [first]
    assert {site.state for site in first.engine.sites.values()} == {"connected"}


def test_who_reaches_no_site_does_not_read_when_one_returns(tmp_path: Path) -> None:
    """A probe proves nothing while nothing could be heard."""
    group = Group(tmp_path, "mqtt")
    first = group.join()
    group.settle(0.5)
    for broker in group.network.brokers.values():
        broker.down()
    second = group.join()
    group.settle(7.0)
    assert phase(second) == "probing"
    for broker in group.network.brokers.values():
        broker.up()
    group.settle(3.0)
    assert sorted(phase(bench) for bench in (first, second)) == ["active", "waiting"]


def test_two_that_did_not_see_each_other_do_when_they_can(tmp_path: Path) -> None:
    """Each reads one site, and then they would take the sessions of both from each other without end."""
    group = Group(tmp_path, "mqtt")
    waits: set[str] = set()
    cut: dict[str, set[str]] = {"dc1": set(), "dc2": set()}
    for site, broker in group.network.brokers.items():
        cut_off(broker, waits, cut[site])
    ids = []
    for name, site in zip(by_inbox(tmp_path), ("dc2", "dc1"), strict=True):
        inbox = Inbox(tmp_path / f"{name}.db", GROUP)
        ids.append(inbox.id)
        inbox.close()
        cut[site].add(ids[-1])
        group.join(name=name).settle(3.0)
    first, second = group.members
    assert [phase(bench) for bench in group.members] == ["active", "active"]
    for each in cut.values():
        each.clear()
    for number in range(40):  # each tries again a moment after the other has taken its sessions
        waits.clear()
        waits.add(ids[number % 2])
        for broker in group.network.brokers.values():
            broker.up()  # so that it does
        for bench in group.members:
            bench.settle(0.05)
    waits.clear()
    group.settle(10.0)
    assert group.readers() == [first]
    assert phase(second) == "waiting"


def test_two_that_start_at_once(group: Group) -> None:
    group.join()
    group.join()
    group.settle(7.0)
    assert len(group.readers()) == 1
    group.settle(12.0)
    fatal = [bench for bench in group.members if bench.engine.shared.health.fatal is not None]
    assert len(fatal) == 1
    assert group.readers() == [bench for bench in group.members if bench not in fatal]


def test_of_three_standbys_one_takes_over(group: Group) -> None:
    first = group.join()
    group.settle(0.5)
    for _ in range(3):
        group.join(standby=True)
    group.settle(2.0)
    group.kill(first)
    group.settle(20.0)
    assert len(group.readers()) == 1
    group.kill(group.readers()[0])
    group.settle(20.0)
    assert len(group.readers()) == 1


def test_all_sites_are_away_for_long(group: Group) -> None:
    """Whoever reads can't prove it meanwhile; nobody takes over, since nobody hears anything. Afterwards one of
    them does: the first where a lock tells it at once that it may."""
    first, second = group.join_both()
    group.settle(1.0)
    for broker in group.network.brokers.values():
        broker.down()
    group.settle(3.0)
    assert group.readers() == [first], "what is here may be handed out for a while"
    group.settle(20.0)
    assert group.readers() == []
    for broker in group.network.brokers.values():
        broker.up()
    group.settle(10.0)
    assert len(group.readers()) == 1
    if group.network["dc1"].protocol == group.network["dc2"].protocol == "amqp":
        assert group.readers() == [first]
        assert phase(second) == "waiting"


def test_one_site_is_away_for_long(group: Group) -> None:
    first, second = group.join_both()
    for name in ("dc1", "dc2"):
        group.network[name].down()
        group.settle(20.0)
        assert group.readers() == [first]
        group.network[name].up()
        group.settle(1.0)
        assert group.readers() == [first]
        assert phase(second) == "waiting"


def test_control_frames_that_are_lost_for_a_while(group: Group) -> None:
    first, second = group.join_both()
    group.settle(1.0)
    for broker in group.network.brokers.values():
        broker.block("memory alarm")
    group.settle(3.0)
    for broker in group.network.brokers.values():
        broker.unblock()
    group.settle(2.0)
    assert group.readers() == [first]
    assert phase(second) == "waiting"


def test_a_standby_that_read_before_goes_on_where_the_other_stopped(group: Group) -> None:
    first = group.join(standby=True)
    group.settle(10.0)
    assert group.readers() == [first]
    second = group.join(standby=True)
    send(group.network["dc1"], 1, 50)
    group.settle(0.2)
    assert len(first.take()) == 50
    group.settle(1.0)
    for bench, other, start in ((first, second, 51), (second, first, 101), (first, second, 151)):
        group.stop(bench)
        group.drop(bench)
        group.settle(12.0)
        assert group.readers() == [other]
        group.go_on(bench)
        group.settle(1.0)
        assert group.readers() == [other]
        send(group.network["dc1"], start, start + 49)
        group.settle(0.2)
        assert seqs(other.take()) == list(range(start, start + 50))
        group.settle(1.0)


def test_a_standby_that_boots_in_1970_goes_on_where_the_other_stopped(group: Group) -> None:
    """What the reader tells of is far ahead of the standby's clock: that is not believed before the producer answers,
    and not forgotten either."""
    epoch = 1_700_000_000_000
    first, second = group.join_both()
    first.wall_offset_us = epoch * 1000
    send(group.network["dc1"], 1, 40, epoch=epoch)
    group.settle(1.0)
    assert seqs(first.take()) == list(range(1, 41))
    group.settle(1.0)
    group.kill(first)
    group.settle(10.0)
    assert group.readers() == [second]
    producer = FakeProducer(second, epoch=epoch)
    send(group.network["dc2"], 1, 50, epoch=epoch)
    group.settle(1.0)
    assert second.take() == []
    nonces = [state.nonce for state in producer.states() if len(state.nonce) == CHALLENGE_BYTES]
    producer.status((1, 50), to=group_address(GROUP), nonces=nonces[-1:])
    group.settle(2.0)
    assert seqs(second.take()) == list(range(41, 51))


def test_a_standby_with_little_memory_goes_on_where_the_other_stopped(group: Group) -> None:
    first, second = group.join_both(rules={"max_streams": 1})
    producers = [f"p{number}" for number in range(4)]
    for producer in producers:
        send(group.network["dc1"], 1, 10, producer=producer)
    group.settle(1.0)
    assert len(first.take()) == 40
    group.settle(1.0)
    group.kill(first)
    group.settle(10.0)
    assert group.readers() == [second]
    for producer in producers:
        send(group.network["dc2"], 1, 12, producer=producer)
    given: list[Message] = []
    for _ in range(8):
        group.settle(2.0)
        given += second.take()
    assert sorted((message.producer, message.seq) for message in given) == [
        (producer, seq) for producer in producers for seq in (11, 12)
    ]
