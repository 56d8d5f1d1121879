"""The in-memory broker and its transports: what they promise, and each fault."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from reliamsg import Site
from reliamsg.errors import ConfigError
from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory
from reliamsg.transport.base import (
    Binding,
    Delivery,
    Evidence,
    Mark,
    Outcome,
    Outgoing,
    ReceiverTransport,
    Token,
)
from tests.patience import wait_for

BILLING = Binding("orders", 0, "billing")
SHIPPING = Binding("orders", 0, "shipping")


class Sending:
    """Sender events that are written down; what to send is put into `waiting`."""

    def __init__(self) -> None:
        self.waiting: list[Outgoing] = []
        self.confirms: list[int] = []
        self.evidence: list[dict[Binding, Evidence | Mark]] = []
        self.calls: list[tuple[object, ...]] = []
        self._lock = threading.Lock()

    def control_received(self, address: str, body: bytes) -> None:
        self.calls.append(("heard", address, body))

    def control_returned(self, address: str) -> bool:
        self.calls.append(("returned", address))
        return False

    def connected(self, endpoint: str, window: int | None) -> None:
        self.calls.append(("connected", endpoint, window))

    def disconnected(self, reason: str) -> None:
        self.calls.append(("disconnected", reason))

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        self.calls.append(("unreachable", reason, credentials))

    def pull(self) -> Sequence[Outgoing]:
        with self._lock:
            waiting, self.waiting = self.waiting, []
            return waiting

    def confirmed(self, tokens: Sequence[int]) -> None:
        self.confirms += tokens

    def refused(self, token: int, outcome: Outcome, reason: str) -> None:
        self.calls.append(("refused", token, outcome))

    def found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        self.evidence.append(dict(evidence))

    def blocked(self, reason: str | None) -> None:
        self.calls.append(("blocked", reason))

    def put(
        self, *numbers: int, topic: str = "orders", body: bytes | None = None, partition: int = 0
    ) -> None:
        with self._lock:
            self.waiting += [
                Outgoing(n, topic, partition, b"%d" % n if body is None else body, None, None, f"p/{n}", 0)
                for n in numbers
            ]


class Receiving:
    """Receiver events that are written down."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.calls: list[tuple[object, ...]] = []

    def control_received(self, address: str, body: bytes) -> None:
        self.calls.append(("heard", address, body))

    def control_returned(self, address: str) -> bool:
        self.calls.append(("returned", address))
        return False

    def connected(self, endpoint: str, session_present: bool | None) -> None:
        self.calls.append(("connected", session_present))

    def disconnected(self, reason: str, renewing: bool = False) -> None:
        self.calls.append(("disconnected", reason))

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        self.calls.append(("unreachable", reason, credentials))

    def busy(self, holder: str) -> None:
        self.calls.append(("busy", holder))

    def received(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries += deliveries

    def drained(self) -> None:
        self.calls.append(("drained",))

    @property
    def numbers(self) -> list[int]:
        return [int(delivery.body) for delivery in self.deliveries]

    @property
    def tokens(self) -> list[Token]:
        return [delivery.token for delivery in self.deliveries]


class World:
    """One stepped site, a sender and, on request, receivers."""

    def __init__(self, protocol: str = "amqp", seed: int = 0) -> None:
        self.network = MemoryNetwork("dc1", protocol=protocol, seed=seed, threaded=False)  # type: ignore[arg-type]
        self.broker = self.network["dc1"]
        self.endpoint = str(self.network.sites[0].endpoints[0])
        self.sending = Sending()
        self.sender = factory.open_sender(self.site(), "p", [BILLING], self.sending)
        self.sender.start()

    def site(self, **settings: int) -> Site:
        return Site("dc1", self.network.sites[0].url, **settings)  # type: ignore[arg-type]

    def receiver(self, *bindings: Binding, **settings: int) -> tuple[Receiving, ReceiverTransport]:
        events = Receiving()
        transport = factory.open_receiver(self.site(**settings), bindings or [BILLING], events)
        transport.start()
        return events, transport

    def send(self, *numbers: int, **options: object) -> None:
        self.sending.put(*numbers, **options)  # type: ignore[arg-type]
        self.sender.wake()
        self.run()

    def run(self) -> None:
        self.network.run_pending()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def mqtt() -> World:
    return World("mqtt")


class TestEveryDay:
    def test_publish_confirm_deliver_acknowledge(self, world: World) -> None:
        received, receiver = world.receiver()
        world.send(1, 2, 3)
        assert world.sending.calls == [("connected", world.endpoint, None)]
        assert world.sending.confirms == [1, 2, 3]
        assert received.numbers == [1, 2, 3]
        assert [d.address for d in received.deliveries] == ["orders"] * 3
        assert not any(d.redelivered for d in received.deliveries)
        assert world.broker.queued() == 3
        receiver.acknowledge(received.tokens)
        assert world.broker.queued() == 0

    def test_nothing_happens_outside_run_pending(self, world: World) -> None:
        world.sending.put(1)
        world.sender.wake()
        assert world.sending.calls == []
        assert world.network.run_pending() > 0
        assert world.network.run_pending() == 0

    def test_every_group_gets_every_message(self, world: World) -> None:
        world.sender.bind([BILLING, SHIPPING])
        world.send(1)
        groups = [world.receiver(BILLING)[0], world.receiver(SHIPPING)[0]]
        world.run()
        assert [group.numbers for group in groups] == [[1], [1]]

    def test_a_topic_bound_while_connected(self, world: World) -> None:
        world.send(1, topic="late")
        world.sender.bind([BILLING, Binding("late", 0, "g")])
        world.send(2, topic="late")
        assert world.sending.confirms == [2]
        assert world.broker.queued("late", "g") == 1

    def test_partitions_have_queues_and_addresses_of_their_own(self, world: World) -> None:
        world.sender.bind([BILLING, Binding("orders", 2, "billing")])
        world.send(1, partition=2)
        received, _ = world.receiver(Binding("orders", 2, "billing"))
        world.run()
        assert [d.address for d in received.deliveries] == ["orders~2"]
        assert world.broker.queued("orders", "billing") == 1

    def test_prefetch_bounds_what_is_unacknowledged(self, world: World) -> None:
        received, receiver = world.receiver(prefetch=2)
        world.send(1, 2, 3, 4, 5)
        assert received.numbers == [1, 2]
        receiver.acknowledge(received.tokens[1:])
        world.run()
        assert received.numbers == [1, 2, 3]

    def test_drained_is_told_each_time_the_queue_turns_empty(self, world: World) -> None:
        received, receiver = world.receiver(prefetch=2)
        world.run()
        assert received.calls == [("connected", True), ("drained",)]
        world.send(1, 2, 3)
        assert received.calls.count(("drained",)) == 1
        receiver.acknowledge(received.tokens)
        world.run()
        assert received.calls.count(("drained",)) == 2

    def test_one_reader_a_group(self, world: World) -> None:
        _, first = world.receiver()
        second_events, _ = world.receiver()
        world.run()
        assert second_events.calls == [("busy", "billing")]
        first.close(1)
        world.run()
        assert second_events.calls[1:] == [("connected", True), ("drained",)]

    def test_a_batch_of_several_messages_has_one_outcome(self, world: World) -> None:
        parts = [
            Outgoing(7, "orders", 0, b"1" * size, None, None, "", 0, left) for size, left in ((1, 1), (2, 0))
        ]
        world.sending.waiting = parts[:]
        world.run()
        assert world.sending.confirms == [7]
        world.broker.max_frame_bytes = 1
        world.sending.waiting = parts[:]
        world.sender.wake()
        world.run()
        assert world.sending.confirms == [7]
        assert world.sending.calls[1:] == [("refused", 7, Outcome.REFUSED)]
        world.broker.max_frame_bytes = None
        world.broker.ignore(1)
        world.sending.waiting = parts[:]
        world.sender.wake()
        world.run()
        assert world.sending.confirms == [7]
        assert len(world.sending.calls) == 2

    def test_close_tells_and_unacknowledged_messages_stay(self, world: World) -> None:
        received, receiver = world.receiver()
        world.send(1)
        receiver.close(1)
        receiver.close(1)
        assert received.calls[-1] == ("disconnected", "closed")
        again, _ = world.receiver()
        world.run()
        assert [(d.body, d.redelivered) for d in again.deliveries] == [(b"1", True)]
        world.sender.close(1)
        world.send(2)
        assert world.sending.waiting

    def test_a_killed_client_says_nothing_more(self, world: World) -> None:
        received, receiver = world.receiver()
        world.send(1)
        calls = list(received.calls)
        receiver.kill()  # type: ignore[attr-defined]
        world.run()
        assert received.calls == calls
        again, _ = world.receiver()
        world.run()
        assert again.numbers == [1]

    def test_a_site_that_speaks_another_protocol(self, world: World) -> None:
        url = world.site().url.removesuffix("/mqtt")
        other = url if world.broker.protocol == "mqtt" else f"{url}/mqtt"
        with pytest.raises(ConfigError, match=r"dc9: .* speaks (amqp|mqtt), not (mqtt|amqp)"):
            factory.open_sender(Site("dc9", other), "p", [], Sending())


class TestConnectionFaults:
    def test_down_and_up(self, world: World) -> None:
        received, _ = world.receiver()
        world.run()
        world.broker.down()
        world.run()
        assert world.sending.calls[1:] == [
            ("disconnected", "connection lost"),
            ("unreachable", "connection refused", False),
        ]
        world.send(1)
        assert not world.sending.confirms
        world.broker.up()
        world.run()
        assert world.sending.confirms == [1]
        assert received.numbers == [1]

    @pytest.mark.parametrize("lose", [False, True])
    def test_what_a_broker_keeps(self, world: World, lose: bool) -> None:
        received, _ = world.receiver(prefetch=2)
        world.send(1, 2, 3)
        world.broker.down()
        assert world.broker.queued() == 3
        world.broker.up(lose=lose)
        world.run()
        assert received.numbers == ([1, 2] if lose else [1, 2, 1, 2])
        assert [d.redelivered for d in received.deliveries[2:]] == ([] if lose else [True, True])
        assert world.broker.lost == (3 if lose else 0)

    def test_cut_connects_again_and_the_outcome_is_open(self, world: World) -> None:
        world.run()
        world.broker.hold_confirms()
        world.send(1)
        assert world.broker.unconfirmed == 1
        world.broker.cut()
        world.broker.release_confirms()
        world.run()
        assert world.sending.confirms == []
        assert [call[0] for call in world.sending.calls] == ["connected", "disconnected", "connected"]
        assert world.broker.queued() == 1

    def test_reconnect(self, world: World) -> None:
        world.run()
        world.sender.reconnect("a confirm is overdue")
        world.run()
        assert world.sending.calls[1:] == [
            ("disconnected", "a confirm is overdue"),
            ("connected", world.endpoint, None),
        ]

    def test_a_consumer_that_gives_way_whenever_it_is_connected_does_not_hold_up_all_others(
        self, world: World
    ) -> None:
        received, receiver = world.receiver()
        received.connected = lambda *_: receiver.reconnect("gives way")  # type: ignore[method-assign]
        world.send(1)
        assert received.calls == [("disconnected", "gives way")]
        world.run()
        assert received.calls == [("disconnected", "gives way")] * 2

    def test_tokens_of_an_earlier_connection_are_void(self, world: World) -> None:
        received, receiver = world.receiver()
        world.send(1)
        world.broker.cut()
        world.run()
        receiver.acknowledge(received.tokens[:1])
        assert world.broker.queued() == 1
        receiver.acknowledge(received.tokens[1:])
        assert world.broker.queued() == 0

    def test_refused_login(self, world: World) -> None:
        world.broker.refuse_login()
        world.run()
        assert world.sending.calls == [("unreachable", "login refused", True)]
        world.broker.refuse_login(False)
        world.run()
        assert world.sending.calls[-1] == ("connected", world.endpoint, None)

    def test_wipe(self, world: World) -> None:
        received, _ = world.receiver(prefetch=2)
        world.send(1, 2, 3)
        world.broker.wipe()
        world.send(4)
        assert world.broker.lost == 3
        assert received.numbers == [1, 2, 4]
        assert ("disconnected", "connection lost") in received.calls

    def test_a_deleted_queue(self, world: World) -> None:
        received, _ = world.receiver()
        world.send(1)
        world.broker.delete_queue("orders", "billing")
        world.run()
        assert received.calls[-3:] == [
            ("disconnected", "the queue was deleted"),
            ("connected", False),
            ("drained",),
        ]
        assert world.broker.lost == 1


class TestPublishFaults:
    def test_held_confirms(self, world: World) -> None:
        world.broker.hold_confirms()
        world.send(1, 2)
        assert world.sending.confirms == []
        world.broker.release_confirms()
        world.run()
        assert world.sending.confirms == [1, 2]

    def test_confirms_out_of_order(self, world: World) -> None:
        world.broker.confirm_out_of_order()
        world.send(*range(50))
        assert world.sending.confirms != sorted(world.sending.confirms)
        assert sorted(world.sending.confirms) == list(range(50))

    def test_lose(self, world: World) -> None:
        world.broker.lose(2)
        world.send(1, 2, 3)
        received, _ = world.receiver()
        world.run()
        assert world.sending.confirms == [1, 2, 3]
        assert received.numbers == [3]
        assert world.broker.lost == 2

    def test_ignore(self, world: World) -> None:
        world.broker.ignore(1)
        world.send(1, 2)
        assert world.sending.confirms == [2]
        assert world.broker.queued() == 1

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_refuse(self, world: World, outcome: Outcome) -> None:
        world.broker.refuse("orders", outcome)
        world.send(1)
        assert world.sending.calls[1:] == [("refused", 1, outcome)]
        world.broker.accept("orders")
        world.send(2)
        assert world.sending.confirms == [2]

    def test_unroutable(self, world: World) -> None:
        world.send(1, topic="nobody")
        assert world.sending.calls[1:] == [("refused", 1, Outcome.RETURNED)]
        assert world.sending.confirms == []

    def test_too_large_for_the_broker_or_for_the_site(self, world: World) -> None:
        world.broker.max_frame_bytes = 2000
        world.send(1, body=bytes(2001))
        assert world.sending.calls[1:] == [("refused", 1, Outcome.REFUSED)]
        world.broker.max_frame_bytes = None
        small = Sending()
        sender = factory.open_sender(world.site(max_frame_bytes=1024), "q", [BILLING], small)
        sender.start()
        small.put(1, body=bytes(1025))
        world.run()
        assert small.calls[1:] == [("refused", 1, Outcome.REFUSED)]

    def test_outcomes_keep_their_order(self, world: World) -> None:
        world.broker.refuse("bad", Outcome.NACKED)
        world.sending.put(1)
        world.sending.put(2, topic="bad")
        world.send(3)
        assert world.sending.confirms == [1, 3]
        assert world.sending.calls[1:] == [("refused", 2, Outcome.NACKED)]

    def test_blocked(self, world: World) -> None:
        world.run()
        world.broker.block("disk alarm")
        world.send(1)
        assert world.sending.calls[1:] == [("blocked", "disk alarm")]
        assert world.sending.waiting
        world.broker.cut()
        world.run()
        assert world.sending.calls[2:] == [
            ("disconnected", "connection reset"),
            ("connected", world.endpoint, None),
            ("blocked", "disk alarm"),
        ]
        world.broker.unblock()
        world.run()
        assert world.sending.calls[-1] == ("blocked", None)
        assert world.sending.confirms == [1]

    def test_the_brokers_own_window(self, world: World) -> None:
        world.broker.window = 20
        world.run()
        assert world.sending.calls == [("connected", world.endpoint, 20)]


class TestDeliveryFaults:
    def test_duplicate(self, world: World) -> None:
        received, _ = world.receiver()
        world.broker.duplicate(1)
        world.send(1, 2)
        assert received.numbers == [1, 1, 2]

    @pytest.mark.parametrize("seed", [1, 2])
    def test_reorder_is_the_same_for_the_same_seed(self, seed: int) -> None:
        orders = []
        for _ in range(2):
            world = World(seed=seed)
            received, _ = world.receiver()
            world.broker.reorder(8)
            world.broker.hold_deliveries()
            world.send(*range(30))
            assert received.numbers == []
            world.broker.release_deliveries()
            world.run()
            orders.append(received.numbers)
        assert orders[0] == orders[1] != list(range(30))
        assert sorted(orders[0]) == list(range(30))
        assert all(abs(at - number) < 30 for at, number in enumerate(orders[0]))

    def test_damage_flips_one_bit(self, world: World) -> None:
        received, _ = world.receiver()
        world.broker.damage(1)
        world.send(1, body=bytes(10))
        world.send(2, body=bytes(10))
        bits = [sum(byte.bit_count() for byte in d.body) for d in received.deliveries]
        assert bits == [1, 0]

    def test_inject(self, world: World) -> None:
        received, _ = world.receiver()
        world.run()
        junk = Delivery(0, "elsewhere", b"junk", None, {"a": "b"}, retained=True, damaged="bad headers")
        count = world.broker.inject_delivery("orders", junk)
        world.run()
        assert count == 1
        (delivery,) = received.deliveries
        assert (delivery.body, delivery.headers, delivery.address) == (b"junk", {"a": "b"}, "elsewhere")
        assert (delivery.retained, delivery.damaged) == (True, "bad headers")


class TestMqtt:
    def test_without_a_session_a_confirmed_message_is_gone(self, mqtt: World) -> None:
        mqtt.send(1)
        assert mqtt.sending.confirms == [1]
        assert mqtt.broker.queued() == 0
        assert mqtt.broker.lost == 1

    def test_a_session_outlives_its_connection(self, mqtt: World) -> None:
        received, receiver = mqtt.receiver()
        mqtt.run()
        receiver.close(1)
        mqtt.send(1)
        again, _ = mqtt.receiver()
        mqtt.run()
        assert received.calls == [("connected", False), ("disconnected", "closed")]
        assert again.calls == [("connected", True)]
        assert again.numbers == [1]

    def test_acknowledgements_count_in_receive_order(self, mqtt: World) -> None:
        received, receiver = mqtt.receiver()
        mqtt.run()
        mqtt.send(1, 2, 3)
        receiver.acknowledge(received.tokens[1:])
        assert mqtt.broker.queued() == 3
        receiver.acknowledge(received.tokens[:1])
        assert mqtt.broker.queued() == 0


class TestThreaded:
    def test_everything_on_io_threads_of_their_own(self) -> None:
        threads: set[str] = set()

        class Watching(Receiving):
            def received(self, deliveries: Sequence[Delivery]) -> None:
                threads.add(threading.current_thread().name)
                super().received(deliveries)

        sending, receiving = Sending(), Watching()
        with MemoryNetwork("dc1") as network:
            sender = factory.open_sender(network.sites[0], "p", [BILLING], sending)
            receiver = factory.open_receiver(network.sites[0], [BILLING], receiving)
            sender.start()
            receiver.start()
            for n in range(100):
                sending.put(n)
                sender.wake()
            until(lambda: len(receiving.deliveries) >= 64)
            receiver.acknowledge(receiving.tokens)
            until(lambda: len(set(receiving.numbers)) == 100 and len(sending.confirms) == 100)
            network["dc1"].cut()
            until(lambda: ("disconnected", "connection reset") in receiving.calls)
        assert threads == {"memory dc1 billing"}
        assert receiving.calls[-1] == ("disconnected", "closed")
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("memory ")]

    def test_close_from_an_event_does_not_wait_for_itself(self) -> None:
        class Closing(Receiving):
            def drained(self) -> None:
                receiver.close(60)

        events = Closing()
        with MemoryNetwork("dc1") as network:
            receiver = factory.open_receiver(network.sites[0], [BILLING], events)
            receiver.start()
            until(lambda: ("disconnected", "closed") in events.calls)

    def test_close_while_unreachable(self) -> None:
        events = Receiving()
        with MemoryNetwork("dc1") as network:
            network["dc1"].down()
            receiver = factory.open_receiver(network.sites[0], [BILLING], events)
            receiver.start()
            until(lambda: bool(events.calls))
        assert events.calls == [("unreachable", "connection refused", False)]


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    wait_for(condition, "it happens", seconds, poll=0.001)
