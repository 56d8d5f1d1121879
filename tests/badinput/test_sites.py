"""Sites that are unreachable, that refuse, or whose login is wrong: a state, and nothing is lost."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.errors import ConfirmTimeout
from reliamsg.lab import Mosquitto, RabbitNode, TcpProxy
from tests.badinput.tools import Clients, bodies, site, states, take, wait_connected
from tests.patience import wait_for

SECRET = "not-the-pass-word"


def refusing(scheme: str, port: int) -> str:
    return f"{scheme}://u:{SECRET}@127.0.0.1:{port}"


def test_unreachable_sites(
    clients: Clients, rabbit: RabbitNode, shared_mosquitto: Mosquitto, make_proxy: Callable[[int], TcpProxy]
) -> None:
    """Construction succeeds, status shows why nothing moves, and messages wait until the sites appear."""
    proxies = [make_proxy(rabbit.port), make_proxy(shared_mosquitto.port)]
    for proxy in proxies:
        proxy.cut()
    sites = [site("dc1", proxies[0].url(rabbit.url)), site("dc2", proxies[1].url(shared_mosquitto.url))]
    consumer = clients.consumer(sites)
    producer = clients.producer(sites)
    sent = [producer.publish(clients.topic, b"%d" % number) for number in range(100)]
    for client in (producer, consumer):
        wait_for(lambda c=client: set(states(c).values()) == {"unreachable"}, "it says so")
        for found in client.status().sites.values():
            assert "refused" in found.error
            assert re.fullmatch(r"127\.0\.0\.1:\d+", found.endpoint)
    assert all(receipt.durable for receipt in sent)
    with pytest.raises(
        ConfirmTimeout, match=r"dc1: disconnected \(unreachable: Connection refused\); dc2: disconnected"
    ):
        sent[0].wait(timeout=0.05)
    with pytest.raises(ConfirmTimeout, match="unreachable"):
        producer.flush(timeout=0.05)
    assert consumer.get(0) is None
    assert producer.pending() == 100
    # Pending messages survive the process that published them.
    assert producer.close(timeout=0.0).messages == 100
    producer = clients.producer(sites)
    wait_for(lambda: set(states(producer).values()) == {"unreachable"}, "it says so")
    for proxy in proxies:
        proxy.heal()
    producer.flush(timeout=120)
    assert bodies(take(consumer, 100)) == [b"%d" % number for number in range(100)]
    wait_connected(consumer)
    wait_connected(producer)
    assert all(not found.error for found in consumer.status().sites.values())


def test_a_host_without_an_address(clients: Clients) -> None:
    sites = [site("dc1", "amqp://no-such-host.invalid"), site("dc2", "mqtt://no-such-host.invalid")]
    producer, consumer = clients.producer(sites), clients.consumer(sites)
    producer.publish(clients.topic, b"kept")
    for client in (producer, consumer):
        wait_for(lambda c=client: set(states(c).values()) == {"unreachable"}, "it says so")
        assert all(found.error for found in client.status().sites.values())
    assert producer.close(timeout=0.0).messages == 1


@pytest.fixture
def mute() -> Iterator[int]:
    """A port whose listener accepts connections and answers nonsense."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def test_servers_of_another_kind(
    clients: Clients, rabbit: RabbitNode, shared_mosquitto: Mosquitto, mute: int
) -> None:
    """AMQP at an MQTT broker, MQTT at an AMQP broker, both at a web server: nothing breaks, and status shows it."""
    sites = [
        site("a", refusing("amqp", shared_mosquitto.port)),
        site("b", refusing("mqtt", rabbit.port)),
        site("c", refusing("amqp", mute)),
        site("d", refusing("mqtt", mute)),
        site("e", refusing("amqps", mute)),
        site("good", shared_mosquitto.url),
    ]
    consumer = clients.consumer(sites)
    wait_for(lambda: states(consumer)["good"] == "connected", "the good site is read")
    producer = clients.producer(sites, confirm="any")
    producer.publish(clients.topic, b"through the good one").wait(timeout=120)
    assert bodies(take(consumer, 1)) == [b"through the good one"]
    for client in (producer, consumer):
        wait_for(
            lambda c=client: list(states(c).values()) == ["unreachable"] * 5 + ["connected"],
            "status shows it",
        )
        found = client.status()
        assert all(one.error for name, one in found.sites.items() if name != "good")
        assert SECRET not in repr(found)


def test_a_virtual_host_that_appears_later(clients: Clients, rabbit: RabbitNode, unique: str) -> None:
    sites = [site("dc1", rabbit.url.replace("%2F", unique))]
    producer, consumer = clients.producer(sites), clients.consumer(sites)
    receipt = producer.publish(clients.topic, b"waits")
    for client in (producer, consumer):
        wait_for(lambda c=client: unique in c.status().sites["dc1"].error, "the vhost is named")
    assert not receipt.done
    rabbit.ctl("add_vhost", unique)
    rabbit.ctl("set_permissions", "-p", unique, "guest", ".*", ".*", ".*")
    receipt.wait(timeout=120)
    assert bodies(take(consumer, 1)) == [b"waits"]


def test_a_user_who_may_not(clients: Clients, rabbit: RabbitNode, unique: str) -> None:
    """Logged in, but without permissions: a state with the broker's text, and it recovers."""
    rabbit.ctl("add_user", unique, SECRET)
    sites = [site("dc1", rabbit.url.replace("guest:guest", f"{unique}:{SECRET}"))]
    producer, consumer = clients.producer(sites), clients.consumer(sites)
    receipt = producer.publish(clients.topic, b"waits")
    for client in (producer, consumer):
        wait_for(lambda c=client: c.status().sites["dc1"].error, "an error is shown")
        assert SECRET not in repr(client.status())
    rabbit.ctl("set_permissions", unique, ".*", ".*", ".*")
    receipt.wait(timeout=120)
    assert bodies(take(consumer, 1)) == [b"waits"]


@pytest.fixture(params=["amqp", "mqtt 5", "mqtt 3.1.1"])
def guarded(
    request: pytest.FixtureRequest, make_mosquitto: Callable[..., Mosquitto]
) -> Callable[[Callable[[], tuple[str, str]] | None, str], Site]:
    """Makes sites of a broker that knows one login, from a callable or in the URL."""
    if request.param == "amqp":
        node: RabbitNode = request.getfixturevalue("rabbit")
        user, password, url, version = "guest", "guest", node.url, "auto"
    else:
        user, password = "alice", "right"
        version = request.param.split()[1]
        url = f"mqtt://x:x@127.0.0.1:{make_mosquitto(users={user: password}).port}"

    def make(credentials: Callable[[], tuple[str, str]] | None, login: str) -> Site:
        where = re.sub(r"//[^@]*@", f"//{login.replace('USER', user).replace('PASSWORD', password)}@", url)
        return site("dc1", where, credentials=credentials, mqtt_version=version)

    make.right = (user, password)  # type: ignore[attr-defined]
    return make


class Vault:
    """The source of a site's credentials; without an answer it raises."""

    def __init__(self) -> None:
        self.answer: tuple[str, str] | None = ("mallory", SECRET)

    def login(self) -> tuple[str, str]:
        if self.answer is None:
            raise RuntimeError(f"the vault says {SECRET}")
        return self.answer


def test_wrong_credentials(
    clients: Clients,
    guarded: Callable[[Callable[[], tuple[str, str]] | None, str], Site],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A state of the site, retried slowly; when the callable returns the right login, everything passes."""
    caplog.set_level("DEBUG")
    right: tuple[str, str] = guarded.right  # type: ignore[attr-defined]
    sending, reading = Vault(), Vault()
    producer = clients.producer([guarded(sending.login, f"USER:{SECRET}")])
    consumer = clients.consumer([guarded(reading.login, f"USER:{SECRET}")])
    receipt = producer.publish(clients.topic, b"waits")
    wait_for(lambda: states(producer) == {"dc1": "refused credentials"}, "the producer says so")
    wait_for(lambda: states(consumer) == {"dc1": "refused"}, "the consumer says so")
    # A callable that raises leads to the same state; its text is not repeated.
    sending.answer = reading.answer = None
    for client in (producer, consumer):
        wait_for(lambda c=client: "RuntimeError" in c.status().sites["dc1"].error, "the callable is named")
        assert SECRET not in repr(client.status())
    assert not receipt.done
    with pytest.raises(ConfirmTimeout) as caught:
        producer.flush(timeout=0.01)
    assert SECRET not in str(caught.value)
    reading.answer = right
    wait_connected(consumer)
    sending.answer = right
    receipt.wait(timeout=120)
    assert bodies(take(consumer, 1)) == [b"waits"]
    producer.close()
    consumer.close()
    assert SECRET not in caplog.text
    for path in (clients.outbox, clients.inbox):
        assert_absent(SECRET, path)


def assert_absent(text: str, path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        assert text.encode() not in file.read_bytes(), file


def test_a_wrong_login_in_the_url(
    clients: Clients, guarded: Callable[[Callable[[], tuple[str, str]] | None, str], Site]
) -> None:
    """The outbox keeps published messages, and a producer with the right URL sends them."""
    wrong = [guarded(None, f"USER:{SECRET}")]
    producer = clients.producer(wrong)
    producer.publish(clients.topic, b"kept")
    wait_for(lambda: states(producer) == {"dc1": "refused credentials"}, "it says so")
    assert producer.close(timeout=0.0).messages == 1
    right = [guarded(None, "USER:PASSWORD")]
    consumer = clients.consumer(right)
    wait_connected(consumer)
    clients.producer(right).flush(timeout=120)
    assert bodies(take(consumer, 1)) == [b"kept"]


@pytest.mark.integrations
def test_an_unknown_virtual_host(rabbit: RabbitNode, tmp_path: Path) -> None:
    """It is not reported as an unreachable site."""
    site = Site(
        "dc1", f"amqp://guest:guest@127.0.0.1:{rabbit.port}/nowhere", backoff_min=0.05, backoff_max=0.1
    )
    producer = Producer("p", [site], outbox=tmp_path / "p.db", groups={"t": ["g"]})
    consumer = Consumer("g", [site], topics=["t"], inbox=tmp_path / "g.db")
    receipt = producer.publish("t", b"kept")
    wait_for(lambda: states(producer) == {"dc1": "refused"}, "the producer says so")
    wait_for(lambda: states(consumer) == {"dc1": "refused"}, "the consumer says so")
    with pytest.raises(ConfirmTimeout, match=r"530 .*nowhere") as caught:
        receipt.wait(0.01)
    assert "nowhere" in caught.value.sites["dc1"]
    consumer.close()
    producer.close(timeout=0.0)
