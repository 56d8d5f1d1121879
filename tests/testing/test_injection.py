"""Injection by tests: which clients get what, and when."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.injection import injected
from reliamsg.testing import MemoryNetwork, inject
from reliamsg.transport import factory
from reliamsg.transport.base import Binding, ReceiverEvents, ReceiverTransport, SenderEvents, SenderTransport
from tests.patience import wait_for

pytest_plugins = ["reliamsg.testing.pytest_plugin"]


class Noted:
    """The ordinary transports, and for which sites they were opened."""

    def __init__(self) -> None:
        self.senders: list[str] = []
        self.receivers: list[str] = []

    def open_sender(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> SenderTransport:
        self.senders.append(site.name)
        return factory.open_sender(site, producer_id, bindings, events)

    def open_receiver(
        self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents
    ) -> ReceiverTransport:
        self.receivers.append(site.name)
        return factory.open_receiver(site, bindings, events)


def test_clients_constructed_in_the_block_keep_the_injected_objects(
    memory_network: MemoryNetwork, tmp_path: Path
) -> None:
    transports, points = Noted(), list[str]()
    sites = memory_network.sites
    with inject(transports=transports, probe=points.append):
        producer = Producer("p", sites, outbox=tmp_path / "p.db", groups={"t": ["g"]})
        consumer = Consumer("g", sites, topics=["t"], inbox=tmp_path / "g.db")
    with producer, consumer:
        producer.publish("t", b"body").wait(timeout=60)
        message = consumer.get(timeout=60)
        assert message is not None
        message.ack(durable=True)
        wait_for(lambda: {"committed", "sent", "confirmed", "acknowledged"} <= set(points))
    assert transports.senders[:2] == ["dc1", "dc2"]
    assert sorted(set(transports.receivers)) == ["dc1", "dc2"]


def test_others_get_nothing(memory_network: MemoryNetwork, tmp_path: Path) -> None:
    transports, points = Noted(), list[str]()
    with inject(transports=transports, probe=points.append):
        pass
    with Producer("p", memory_network.sites, outbox=tmp_path / "p.db", groups={"t": ["g"]}) as producer:
        producer.publish("t", b"body").wait(timeout=60)
    assert (points, transports.senders) == ([], [])


def test_only_the_thread_that_entered_the_block_sees_it() -> None:
    seen: list[bool] = []
    with inject(probe=print):
        thread = threading.Thread(target=lambda: seen.append(injected().probe is None))
        thread.start()
        thread.join()
        assert injected().probe is print
    assert seen == [True]


def test_an_inner_block_replaces_only_the_given_objects() -> None:
    transports, other = Noted(), list[str]().append
    with inject(transports=transports, probe=print):
        with inject(probe=other):
            assert (injected().transports, injected().probe) == (transports, other)
        assert (injected().transports, injected().probe) == (transports, print)
    with pytest.raises(ZeroDivisionError), inject(probe=print):
        raise ZeroDivisionError
    assert (injected().transports, injected().probe) == (None, None)
