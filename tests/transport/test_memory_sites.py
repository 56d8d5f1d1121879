"""Sites with ``memory://`` URLs: which of them share a broker, and for how long."""

from __future__ import annotations

import gc
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing
from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory
from reliamsg.transport.base import Binding
from reliamsg.transport.memory import registry
from tests.patience import wait_for
from tests.transport.tools import Receiving, Sending

BILLING = Binding("orders", 0, "billing")


@pytest.fixture(params=["", "/mqtt"], ids=["amqp", "mqtt"])
def url(request: pytest.FixtureRequest) -> str:
    """Of a broker that nobody else has."""
    return f"memory://{uuid.uuid4().hex}{request.param}"


def opened(site: Site) -> None:
    factory.open_sender(site, "p", [], Sending()).close(0)


def queues(site: Site) -> int:
    """How many queues a message for the group's topic would reach."""
    return len(registry.find_host(site).broker.model.queues_of("orders", 0))


def test_a_producer_and_a_consumer_meet_at_the_same_name(url: str, tmp_path: Path) -> None:
    groups = {"orders": ["billing"]}
    with (
        Producer("p", [Site("here", url)], outbox=tmp_path / "p.db", groups=groups) as producer,
        Consumer("billing", [Site("there", url)], topics=["orders"], inbox=tmp_path / "c.db") as consumer,
    ):
        producer.publish("orders", b"42").wait(timeout=60)
        message = consumer.get(timeout=60)
        assert message is not None
        assert message.body == b"42"
        message.ack()


def test_a_broker_outlives_its_clients(url: str, tmp_path: Path) -> None:
    site = Site("dc1", url)
    factory.create_group(site, [BILLING], 1.0)
    with Producer("p", [site], outbox=tmp_path / "p.db", groups={"orders": ["billing"]}) as producer:
        producer.publish("orders", b"42").wait(timeout=60)
    gc.collect()
    with Consumer("billing", [site], topics=["orders"], inbox=tmp_path / "c.db") as consumer:
        message = consumer.get(timeout=60)
        assert message is not None
        message.ack()


def test_other_names_are_other_brokers(url: str) -> None:
    one, other = Site("dc1", url), Site("dc1", url.replace("memory://", "memory://x"))
    factory.create_group(one, [BILLING], 1.0, KeyRing({"k": bytes(range(32))}, sign_with="k"))
    assert queues(one) == 1
    assert queues(other) == 0
    factory.delete_group(one, [BILLING], 1.0)
    assert queues(one) == 0


def test_a_name_stands_for_one_protocol(url: str) -> None:
    opened(Site("dc1", url))
    wrong = url.removesuffix("/mqtt") if url.endswith("/mqtt") else f"{url}/mqtt"
    with pytest.raises(ConfigError, match=r"dc9: the broker \w+ in memory speaks \w+, not \w+"):
        opened(Site("dc9", wrong))


def test_threads_that_use_a_name_first_share_its_broker(url: str) -> None:
    found: list[object] = []
    ready = threading.Barrier(8)

    def find() -> None:
        ready.wait()
        found.append(registry.find_host(Site("dc1", url)))

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(host) for host in found}) == 1


def test_networks_with_equal_site_names_do_not_meet() -> None:
    with MemoryNetwork("dc1") as one, MemoryNetwork("dc1") as other:
        assert one.sites[0].url != other.sites[0].url
        sender = factory.open_sender(one.sites[0], "p", [], Sending())
        sender.start()
        wait_for(lambda: one["dc1"].connections == 1)
        assert other["dc1"].connections == 0
        sender.close(5)


@pytest.mark.parametrize("name", ["dc1", "Frankfurt am Main", "a.b/c?d", "東京", "x" * 100])
@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_networks_have_sites_of_any_name(name: str, protocol: str) -> None:
    with MemoryNetwork(name, protocol=protocol) as network:  # type: ignore[arg-type]
        (site,) = network.sites
        assert (site.name, site.protocol) == (name, protocol)
        opened(site)


def _close(network: MemoryNetwork) -> None:
    network.close()


def _forget(network: MemoryNetwork) -> None:
    pass


@pytest.mark.parametrize("end", [_close, _forget])
def test_sites_of_a_network_that_is_gone_cannot_be_opened(end: Callable[[MemoryNetwork], None]) -> None:
    network = MemoryNetwork("dc1")
    (site,) = network.sites
    opened(site)
    end(network)
    del network
    gc.collect()
    with pytest.raises(ConfigError, match=r"dc1: the MemoryNetwork of memory://network-\d+\.dc1 is closed"):
        factory.open_receiver(site, [BILLING], Receiving())


def test_what_was_closed_is_not_kept() -> None:
    """A broker that lives as long as the process remembers only the transports that are open."""
    host = registry.find_host(Site("dc1", f"memory://{uuid.uuid4().hex}"))
    site = Site("dc1", "memory://dc1")
    for _ in range(100):
        transport = host.open_sender(site, "p", [], Sending())
        transport.start()
        transport.close(5)
    assert len(host._transports) == 1
